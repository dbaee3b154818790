"""Runs with roles on Slurm, for tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from tests.command import Result
    from tests.slurm.conftest import Login, Run

TALKS = """
import os, socket, sys, threading, time
env, me, other = os.environ, os.environ["DISTLAUNCH_ROLE"], sys.argv[1]
rank = int(env.get("RANK") or env["DISTLAUNCH_RANK"])
master = {role: env[f"DISTLAUNCH_ROLE_{role.upper()}_MASTER"].rsplit(":", 1) for role in (me, other)}
hosts = env[f"DISTLAUNCH_ROLE_{other.upper()}_HOSTS"].split(",")
assert master[other][0] == hosts[0], (master, hosts)
server = None
if rank == 0:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((master[me][0], int(master[me][1])))
    server.listen()
def serve():
    for _ in range(int(sys.argv[2])):
        connection = server.accept()[0]
        connection.sendall(f"{me} to {connection.recv(100).decode()}".encode())
        connection.close()
thread = threading.Thread(target=serve)
if server:
    thread.start()
while True:
    try:
        connection = socket.create_connection((master[other][0], int(master[other][1])), timeout=60)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
connection.sendall(f"{me} {rank}".encode())
told = "SLURM_NTASKS SLURM_NNODES SLURM_JOB_NODELIST SLURM_STEP_NODELIST SLURM_PROCID SLURM_NODEID SLURM_CPUS_PER_TASK"
print("heard", connection.recv(100).decode(), *(env.get(name, "-") for name in told.split()), flush=True)
if server:
    thread.join()
"""
"""The first worker of each role answers the workers of the other, whose number is the second argument."""

PAIR = """
[roles.trainer]
nodes = 2
script = "talks.py"
args = ["rollout", "2"]
gres = "gpu:2"
cpus_per_task = 3
nodelist = "n[3-4]"

[roles.rollout]
nodes = 1
script = "talks.py"
args = ["trainer", "4"]
contract = "env"
nproc_per_node = 2
gres = "none"
"""

WAITING = ("--gres", "none", "--role", "one:1:waits.py", "--role", "two:2:waits.py")

AGAIN_ONCE = ("--gres", "none", "--role", "one:1:again.py 1", "--role", "two:2:again.py 1")

FAILS = """
import os, signal, sys, time
role = os.environ["DISTLAUNCH_ROLE"]
again = os.path.exists("failed-" + sys.argv[1])
print("begins", role, flush=True)
if role == "frail" and not again:
    open("failed-" + sys.argv[1], "w").close()
    raise ValueError("frail indeed")
if role == "sound" and sys.argv[1] == "end":
    signal.pause()
"""


def job_of(run: Run) -> str:
    """Slurm's id of its job, which is that of the first component."""
    rows = [row.partition("|") for row in run.login.queue("%i|%k")]
    return next(number for number, _, comment in rows if comment == f"distlaunch:{run.id}").partition("+")[0]


def agent(run: Run, node: int) -> dict[str, Any]:
    """What a node's agent has noted about itself."""
    found: dict[str, Any] = json.loads((run.directory / f"nodes/{node}/agent.json").read_text())
    return found


def attempts(done: Result) -> list[str]:
    """What the workers of `AGAIN` have printed."""
    return sorted(line.split("] ")[1] for line in done.stdout.splitlines())


def roles_file(login: Login, name: str, **on_failure: str) -> str:
    """A run file with a role of one node for each of these, which run `fails.py`."""
    tables = [
        f'[roles.{role}]\nnodes = 1\nscript = "fails.py"\nargs = ["{name}"]\non_failure = "{what}"\n'
        for role, what in on_failure.items()
    ]
    return str(login.write(f"{name}.toml", "\n".join(tables)))
