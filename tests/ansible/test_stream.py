"""The connections that fetch streams, without a host: a program of ours in place of ssh."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher.agent.host import ANSWER
from launcher.backends import _ansible_stream as streams

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

WORD = b"a line\n"


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


ANSWERS = f"printf '\\n{ANSWER}{{}}\\nd {len(WORD)}\\n{WORD.decode()}'; exec sleep 30"


def test_what_waits_in_a_pipe_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is kept from reading for long does not drop connections whose answers have come meanwhile."""
    monkeypatch.setattr(streams, "_SILENT_S", (1.0, 1.0))
    pump = streams.Pump([streams.Tail(node(tmp_path, rank, ANSWERS), tmp_path) for rank in range(3)])
    try:
        pump.turn(0.0)
        time.sleep(2.0)  # longer than the limit
        pump.turn(0.1)
        assert [tail.state for tail in pump.tails] == ["running"] * 3
        assert [connections(tmp_path, rank) for rank in range(3)] == [1, 1, 1]
        assert (tmp_path / "nodes/2/stream").read_bytes() == WORD
    finally:
        pump.close()


def test_a_login_that_takes_longer_than_the_limit_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit grows from try to try: hosts or a launcher with much to do are not asked to begin again for ever."""
    monkeypatch.setattr(streams, "_SILENT_S", (0.5, 8.0))
    tail = streams.Tail(node(tmp_path, 0, f"sleep 1.5; {ANSWERS}"), tmp_path)
    pump = streams.Pump([tail])
    try:
        deadline = time.monotonic() + 30
        while tail.state == "unknown" and time.monotonic() < deadline:
            pump.turn(0.1)
        assert tail.state == "running"
        assert connections(tmp_path, 0) > 1
    finally:
        pump.close()
