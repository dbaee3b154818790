"""Another user of the same host at a run's ports: what they send, take and find there."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.agent.harness import Run

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
    """A process of another user; if the tests do not run as root, at least one that knows only the port."""

    def __init__(self, program: str, doing: str, port: int, said: list[bytes]) -> None:
        argv = [sys.executable, "-I", "-c", program, doing, str(port)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(argv, cwd="/", **pipes)
        assert self._process.stdin is not None
        self._process.stdin.write("".join(data.hex() + "\n" for data in said))
        self._process.stdin.close()

    def next_line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return str(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def thief(port: int) -> str:
    """The addresses of the port that another user can listen on."""
    found = ""
    for how in ("address", "port"):
        stranger = Stranger(THIEF, how, port, [])
        while line := stranger.next_line():
            found += line
        stranger.end()
    assert found.count("done\n") == 2, "it could try both"
    return found.replace("done\n", "")


def store_port(run: Run) -> int:
    """As any user of the host can find it, by looking for listening ports."""
    run.until((run.directory / "rendezvous.json").exists)
    return int(json.loads((run.directory / "rendezvous.json").read_text())["port"])


def forged(run: Run) -> list[bytes]:
    """Messages that would end the run, hide its end or show text to its operator, and garbage."""
    cause = {
        "class": "user_code",
        "message": ESCAPES,
        "host": ESCAPES,
        "time": 0,
        "node": 0,
        "rank": 0,
        "secondary": False,
    }
    words = [
        {
            "kind": kind,
            "node": 1,
            "host": ESCAPES,
            "cause": cause,
            "stop": "cancelled",
            "signal": 15,
            "left_s": 0,
            "leaves": False,
        }
        for kind in ("fail", "stop", "lost", "restart", ESCAPES)
    ]
    keys = ("round/0/verdict", "final/verdict", "round/0/go", "beat/1", "member/1", "finished", "round/0/finished")
    calls: list[list[Any]] = []
    for key in keys:
        calls += [["set", key, "garbage"], ["add", key, 1 << 40], *(["compare_set", key, "", word] for word in words)]
    calls += [["set", f"key {number}", "x" * 1000] for number in range(50)]
    said = [json.dumps(call).encode() for call in calls]
    frames = [struct.pack("!I", len(text)) + mac + text for text in said for mac in (b"", b"\0" * 32)]
    odd = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000, os.urandom(500), ESCAPES.encode(), frames[0][:-1]]
    return [
        *odd,
        *frames,
        b"x" * 64 + frames[0],
        *map(torchs_set, (f"torch.rendezvous.{run.directory.name}", "final/verdict")),
    ]


class Exploit:
    """A pickle that touches a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


OWNED = Path("/tmp") / f"distlaunch-owned-{os.getpid()}"


def torchs_set(key: str) -> bytes:
    """What torch's TCPStore takes for a greeting and the setting of a key, to a pickle that runs code."""
    value = base64.b64encode(pickle.dumps(Exploit(OWNED)))
    name = f"/{key}".encode()
    greeting = b"\0" + struct.pack("<I", 0x3C85F7CE)
    return greeting + b"\1" + struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(value)) + value


def listens_at(port: int) -> set[str]:
    """The addresses with a listener at the port, as the kernel writes them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                address, state = line.split()[1], line.split()[3]
                if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                    found.add(address.rpartition(":")[0])
    return found
