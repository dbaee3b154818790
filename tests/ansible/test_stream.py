"""The connections that fetch streams, without a host: a program of ours in place of ssh, and a clock that the test turns."""

from __future__ import annotations

import select
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.host import ANSWER
from launcher.backends import _ansible_stream as streams
from tests.ansible.conftest import Gate
from tests.testbed import wait_until

if TYPE_CHECKING:
    from pathlib import Path

WORD = b"a line\n"
ANSWERS = f"printf '\\n{ANSWER}{{}}\\nd {len(WORD)}\\n{WORD.decode()}'; exec sleep 1000"


class Clock:
    """The connections' time, which also goes on when the test says so."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Hours pass at once, so that the machine's own speed is none of a test's business."""
    made = Clock()
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=made.monotonic, sleep=time.sleep))
    monkeypatch.setattr(streams, "_SILENT_S", (1000.0, 8000.0))
    return made


def node(folder: Path, rank: int, program: str) -> dict[str, Any]:
    """A node whose ssh is this shell program; it finds `started` in its folder, one line per connection."""
    ssh = folder / f"ssh-{rank}"
    ssh.write_text(f'#!/bin/sh\ncase "$*" in *"-O exit"*) exit;; esac\necho x >> {folder}/started-{rank}\n{program}\n')
    ssh.chmod(0o700)
    return {"host": f"n{rank}", "rank": rank, "python": "python3", "folder": "/x", "agent_path": "/x/a", "ssh": [str(ssh), "h"]}


def connections(folder: Path, rank: int) -> int:
    """How many were opened to a node."""
    path = folder / f"started-{rank}"
    return len(path.read_text().split()) if path.exists() else 0


def wait_connections(folder: Path, rank: int, number: int) -> None:
    """Wait for the program in place of ssh to have begun so often."""
    wait_until(f"connection {number} to node {rank}", lambda: connections(folder, rank) >= number, limit_s=60, every_s=0.01)


def test_what_waits_in_a_pipe_is_no_silence(tmp_path: Path, clock: Clock) -> None:
    """A launcher that is kept from reading for long does not drop connections whose answers have come meanwhile."""
    gate = Gate(tmp_path / "gate", range(3))
    nodes = [node(tmp_path, rank, f"head -c 1 {gate}.{rank} >/dev/null; {ANSWERS}") for rank in range(3)]
    pump = streams.Pump([streams.Tail(each, tmp_path) for each in nodes])
    try:
        pump.turn(0)
        gate.open()
        for tail in pump.tails:
            assert tail._pipe is not None
            assert select.select([tail._pipe.fd], [], [], 60)[0], "an answer"
        clock.ahead_s += 5000  # longer than the limit

        while not all(tail.state == "running" for tail in pump.tails):
            pump.turn(0.1)

        assert [connections(tmp_path, rank) for rank in range(3)] == [1, 1, 1]
        assert (tmp_path / "nodes/2/stream").read_bytes() == WORD
    finally:
        pump.close()
        gate.close()


def test_a_login_that_takes_longer_than_the_limit_comes_to_its_end(tmp_path: Path, clock: Clock) -> None:
    """The limit grows from try to try, up to the second: hosts with much to do are not asked to begin again for ever."""
    gate = tmp_path / "gate"
    tail = streams.Tail(node(tmp_path, 0, f"[ -e {gate} ] || exec sleep 1000; {ANSWERS}"), tmp_path)
    pump = streams.Pump([tail])
    try:
        for number, limit_s in enumerate((1000, 2000, 4000, 8000, 8000), 1):
            pump.turn(0)
            wait_connections(tmp_path, 0, number)
            clock.ahead_s += limit_s - 100
            pump.turn(0)
            assert tail._pipe is not None, f"dropped before {limit_s} s"
            clock.ahead_s += 200
            pump.turn(0)
            assert tail._pipe is None, f"not dropped after {limit_s} s"
            assert tail.problem == "no answer"
            clock.ahead_s += 60  # the pause before the next try
        gate.touch()
        pump.turn(0)
        clock.ahead_s += 7900
        while tail.state == "unknown":
            pump.turn(0.1)
        assert (tail.state, tail.problem) == ("running", "")
        assert connections(tmp_path, 0) == 6
    finally:
        pump.close()
