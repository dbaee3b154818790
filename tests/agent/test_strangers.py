"""Another user of the same machine, on a real run's ports: nothing that he does there is heard, seen or paid for by the run."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.harness import Run, Runner

WAITS = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("through", flush=True)
"""

NOBODY = 65534
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mPassword for root: "

STRANGER = """
import encodings.idna, os, socket, sys, time
if os.getuid() == 0:
    os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
doing, port = sys.argv[1], int(sys.argv[2])
"""

FLOODS = (
    STRANGER
    + """
def connected():
    sock = socket.create_connection(("127.0.0.1", port), 30)
    sock.settimeout(30)
    return sock
for line in sys.stdin:
    data = bytes.fromhex(line)
    with connected() as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass
held = [connected() for _ in range(int(doing))]
print("held", flush=True)
sys.stdin.close()
while True:
    for number, sock in enumerate(held):  # half words, from connections that it keeps as long as it can
        try:
            sock.sendall(b"x")
        except OSError:
            try:
                held[number] = connected()
            except OSError:
                sys.exit()  # the run is over
    time.sleep(0.05)
"""
)

THIEF = (
    STRANGER
    + """
for host in ("127.0.0.1", "0.0.0.0", "::", "::1", "127.0.0.2"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if doing == "port":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            sock.bind((host, port)), sock.listen()
            print("listens on", host)
        except OSError:
            pass
print("done")
"""
)


class Stranger:
    """A process of another user; where the tests are not root's, at least one that knows nothing but the port."""

    def __init__(self, program: str, doing: str, port: int, said: list[bytes]) -> None:
        argv = [sys.executable, "-I", "-c", program, doing, str(port)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(argv, cwd="/", **pipes)
        assert self._process.stdin is not None
        self._process.stdin.write("".join(data.hex() + "\n" for data in said))
        self._process.stdin.close()

    def heard(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return str(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def flood() -> Iterator[Any]:
    """Starts floods, which are over by the test's end."""
    running: list[Stranger] = []

    def start(port: int, said: list[bytes], held: int = 300) -> None:
        running.append(Stranger(FLOODS, str(held), port, said))
        assert running[-1].heard() == "held\n"

    yield start
    for stranger in running:
        stranger.end()


def thief(port: int) -> str:
    """What a thief of another user gets of the port."""
    found = ""
    for how in ("address", "port"):
        stranger = Stranger(THIEF, how, port, [])
        while line := stranger.heard():
            found += line
        stranger.end()
    assert found.count("done\n") == 2, "it could try"
    return found.replace("done\n", "")


def store_port(run: Run) -> int:
    """As anybody on the machine finds it, who looks for ports that are listened on."""
    run.until((run.directory / "rendezvous.json").exists)
    return int(json.loads((run.directory / "rendezvous.json").read_text())["port"])


def forged(run: Run) -> list[bytes]:
    """What would end the run, hide its end, or speak to its operator, and what is no word at all."""
    cause = {"class": "user_code", "message": ESCAPES, "host": ESCAPES, "time": 0, "node": 0, "rank": 0, "secondary": False}
    words = [
        {
            "kind": kind,
            "node": 1,
            "host": ESCAPES,
            "cause": cause,
            "stop": "cancelled",
            "signal": 15,
            "deadline": 0,
            "leaves": False,
        }
        for kind in ("fail", "stop", "lost", "restart", ESCAPES)
    ]
    keys = ("round/0/word", "final/word", "round/0/go", "beat/1", "member/1", "finished", "round/0/finished")
    calls: list[list[Any]] = []
    for key in keys:
        calls += [["set", key, "garbage"], ["add", key, 1 << 40], *(["compare_set", key, "", word] for word in words)]
    calls += [["set", f"key {number}", "x" * 1000] for number in range(50)]
    said = [json.dumps(call).encode() for call in calls]
    frames = [struct.pack("!I", len(text)) + mac + text for text in said for mac in (b"", b"\0" * 32)]
    odd = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000, os.urandom(500), ESCAPES.encode(), frames[0][:-1]]
    return [*odd, *frames, b"x" * 64 + frames[0], *map(torchs_set, (f"torch.rendezvous.{run.directory.name}", "final/word"))]


class Exploit:
    """A pickle that touches a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


OWNED = Path("/tmp") / f"distlaunch-owned-{os.getpid()}"


def torchs_set(key: str) -> bytes:
    """What torch's TCPStore takes for a greeting and the setting of a key: to a pickle that runs code."""
    value = base64.b64encode(pickle.dumps(Exploit(OWNED)))
    name = f"/{key}".encode()
    greeting = b"\0" + struct.pack("<I", 0x3C85F7CE)
    return greeting + b"\1" + struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(value)) + value


def listens_at(port: int) -> set[str]:
    """The addresses on which anybody listens on the port, as the kernel writes them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                address, state = line.split()[1], line.split()[3]
                if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                    found.add(address.rpartition(":")[0])
    return found


def check_unharmed(run: Run) -> None:
    """It has ended as if nobody had been there, and says once, in its own words, that somebody was."""
    assert run.result() == "success", (run.events, run.agent_stderr())
    assert {bytes(lines).split()[-1] for lines in run.stdout.values()} == {b"through"}
    assert {fields["restarts"] for fields in run.of("done")} == {0}
    told = [fields["message"] for fields in run.of("warning") if "run's store" in fields["message"]]
    assert len(told) == 2, told
    assert told[0].startswith("the run's store has refused a connection from 127.0.0.1, which does not know the run's key")
    assert int(told[1].split()[5]) > 200, "each of them is counted"
    assert not any("\x1b" in path.read_text() for path in run.directory.glob("nodes/*/stream"))
    assert run.agent_stderr().strip() == ""


def test_a_stranger_has_no_word_in_a_run_with_a_fixed_number_of_nodes(agents: Runner, flood: Any, tmp_path: Path) -> None:
    run = agents.start(WAITS, str(tmp_path / "go"), nodes="2")
    run.until(lambda: len(run.stdout) == 2)
    port = store_port(run)
    assert listens_at(port) == {"0100007F"}, "on the loopback alone"

    flood(port, forged(run))
    (tmp_path / "go").touch()
    run.wait()

    check_unharmed(run)


@pytest.mark.torch
def test_a_stranger_has_no_word_in_an_elastic_run_and_runs_no_code_there(warm_agents: Runner, flood: Any, tmp_path: Path) -> None:
    run = warm_agents.start(WAITS, str(tmp_path / "go"), nodes="1:2")
    run.until(lambda: len(run.stdout) == 2)
    port = store_port(run)
    assert listens_at(port) == {"0100007F"}

    try:
        flood(port, forged(run))
        (tmp_path / "go").touch()
        run.wait()
        assert not OWNED.exists(), "a stranger's pickle was read"
    finally:
        OWNED.unlink(missing_ok=True)

    check_unharmed(run)


@pytest.mark.torch
def test_strangers_who_were_first_keep_no_node_out(warm_agents: Runner, flood: Any, tmp_path: Path) -> None:
    run = warm_agents.start(WAITS, str(tmp_path / "go"), nodes="2", late=1)
    flood(store_port(run), forged(run), 600)
    (tmp_path / "go").touch()

    run.go_on(1)
    run.wait()

    check_unharmed(run)


TAKEN = re.compile(r"127\.0\.0\.1|0\.0\.0\.0|::$", re.MULTILINE)
"""Where a worker would find who listens there."""

ALL_REDUCE = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print(dist.get_world_size(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nobody_else_gets_the_master_port_at_any_moment(warm_agents: Runner, start: str, tmp_path: Path) -> None:
    run = warm_agents.start(ALL_REDUCE, str(tmp_path / "go"), nproc_per_node="2", start=start)
    run.until(lambda: len(run.stdout) == 2)
    (port,) = {fields["master_port"] for fields in run.of("rendezvous")}

    assert listens_at(port) == {"0100007F"}, "before a worker asks for it, and on the loopback alone"
    assert not TAKEN.search(thief(port))
    (tmp_path / "go").touch()
    run.until(lambda: all(b"2\n" in run.stdout[rank] for rank in range(2)))
    assert not TAKEN.search(thief(port))
    run.wait()

    assert run.result() == "success", run.stderr
    assert len(run.of("rendezvous")) == 1, "nobody had to try again"
