"""Scripts, run files and helpers for tests of roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.k8s.conftest import User

LATEST = "distlaunch.test/torch:latest"
"""Another name of the testbed's image."""

EXCHANGE = """
import os, socket, sys, time
role, other = os.environ["DISTLAUNCH_ROLE"], sys.argv[1].upper()
mine = os.environ[f"DISTLAUNCH_ROLE_{role.upper()}_MASTER"].rpartition(":")
there = os.environ[f"DISTLAUNCH_ROLE_{other}_MASTER"].rpartition(":")
nodes = len(os.environ[f"DISTLAUNCH_ROLE_{role.upper()}_HOSTS"].split(","))
rank = int(os.environ.get("RANK", os.environ.get("DISTLAUNCH_RANK")))
world = int(os.environ.get("WORLD_SIZE", os.environ.get("DISTLAUNCH_WORLD_SIZE")))
asking = int(sys.argv[2])  # how many workers of the other role ask
server = socket.create_server(("", int(mine[2]))) if rank == 0 else None
def connected():
    while True:
        try:
            return socket.create_connection((there[0], int(there[2])), 10)
        except OSError:
            time.sleep(0.05)
with connected() as peer:
    peer.sendall(b"%d\\n" % rank)
    for _ in range(asking if server else 0):
        with server.accept()[0] as caller:
            caller.sendall(f"{role} to {caller.makefile().readline()}".encode())
    answer = peer.makefile().readline().strip()
names = " ".join(sorted(name for name in ("RANK", "DISTLAUNCH_RANK") if name in os.environ))
print(f"{role} {rank}/{world} on {nodes}: {answer}; {names}", flush=True)
"""
"""Each worker asks the first one of the other role."""

ROLES = """
[roles.trainer]
nodes = 2
script = "exchange.py"
args = ["rollout", "2"]
cpu = "300m"

[roles.rollout]
nodes = 1
script = "exchange.py"
args = ["trainer", "2"]
contract = "env"
nproc_per_node = 2
image = "distlaunch.test/torch:latest"
pull_policy = "IfNotPresent"
memory = "256Mi"
cpu = "200m"
"""

TWO = """
[roles.first]
nodes = 1
script = "{first}"

[roles.second]
nodes = 2
script = "{second}"
{more}
"""

STAYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), sys.exit(0)))
signal.signal(signal.SIGUSR1, lambda *_: None)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""

UNTIL = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: None)
print("begun", flush=True)
signal.pause()
print("lasted", flush=True)
"""
"""Lasts until it is signalled."""

LASTS = "import time; print('begun', flush=True); time.sleep(4); print('lasted', flush=True)\n"

AGAIN = """
import os, sys, time
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print("attempt", attempt, "after", os.environ.get("DISTLAUNCH_ATTEMPT_REASON"), flush=True)
time.sleep(0.5)
sys.exit(3 if attempt != "2" else 0)
"""

FAILS_ONCE = """
import os, sys, time
again = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("restarts", again, flush=True)
time.sleep(0.5)
sys.exit(0 if again else int(os.environ["RANK"] == "1") * 3)
"""


def write(user: User, name: str, first: str, second: str, more: str = "") -> str:
    """A run file for two roles; its name."""
    user.write(name, TWO.format(first=first, second=second, more=more))
    return name


def said(stdout: str) -> list[str]:
    """What workers have printed, with their ranks."""
    return sorted(line.replace("[", "").partition(":")[0] + line.partition("]")[2] for line in stdout.splitlines())


def by_role(user: User, run: str) -> dict[str, list[dict[str, Any]]]:
    """The run's pods that have not ended."""
    found: dict[str, list[dict[str, Any]]] = {}
    for pod in user.pods(run):
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
            found.setdefault(pod["metadata"]["labels"]["distlaunch/role"], []).append(pod)
    return found


def ready(user: User, run: str, count: int = 3) -> None:
    user.wait_printed(run, "ready", count)
