"""How a follower shows workers' lines and nodes' messages, and what it keeps of them."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from launcher import output
from launcher.agent.protocol import Event, LineTagger, Output, encode_event
from launcher.backends._base import Chunk
from launcher.console.announce import Announcer
from launcher.console.worker_output import WorkerOutput
from tests.cli.scripted import Scripted, followed, impatience  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """What is written, in place of the terminal."""
    written: list[tuple[int, bytes]] = []

    def write(fd: int, data: bytes, *, message: bool = False) -> bool:
        written.append((fd, data))
        return True

    monkeypatch.setattr(output, "write", write)
    return written


def feed(workers: WorkerOutput, rank: int, data: bytes, *, ends_line: bool, now: float = 0.0) -> None:
    workers.show(Output(0, rank, False, data, ends_line), now)


def test_a_line_of_one_rank_is_not_cut_by_another(shown: list[tuple[int, bytes]]) -> None:
    workers = WorkerOutput(None)
    feed(workers, 0, b"one ", ends_line=False)
    feed(workers, 1, b"other\nlines", ends_line=True)
    feed(workers, 0, b"line", ends_line=True)
    workers.flush(0.0)

    assert b"".join(data for _, data in shown) == b"[0:1] other\n[0:1] lines\n[0:0] one line\n"


def test_a_piece_waits_two_seconds_and_64_kib_at_most(shown: list[tuple[int, bytes]]) -> None:
    workers = WorkerOutput(frozenset({0, 1}))
    feed(workers, 0, b"prompt", ends_line=False)
    workers.flush(1.9)
    assert not shown
    workers.flush(2.0)
    feed(workers, 0, b"x" * 40_000, ends_line=False, now=3.0)
    feed(workers, 0, b"x" * 40_000, ends_line=False, now=3.0)
    workers.flush(3.0)

    assert [data for _, data in shown] == [b"[0:0] prompt\n", b"[0:0] " + b"x" * 80_000 + b"\n"]


def test_a_piece_of_the_only_rank_is_shown_at_once(shown: list[tuple[int, bytes]]) -> None:
    workers = WorkerOutput(frozenset({0}))
    feed(workers, 0, b"50%\r", ends_line=False)
    workers.flush(0.0)

    assert shown == [(1, b"50%\r")]


def test_a_prompt_of_a_rank_that_gets_a_terminal_is_shown_at_once_and_its_line_stays_open(
    shown: list[tuple[int, bytes]],
) -> None:
    workers = WorkerOutput(frozenset({0, 1}))
    feed(workers, 0, b"half", ends_line=False)
    feed(workers, 1, b"more? ", ends_line=False)
    workers.hand_over(1)
    workers.flush(0.0)
    workers.flush(2.0)

    assert [data for _, data in shown] == [b"[0:1] more? ", b"[0:0] half\n"]


def test_a_slow_reader_of_a_non_blocking_pipe_gets_everything() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    full = b"x" * os.write(write, b"x" * 10_000_000)  # as much as there is room for
    data = os.urandom(300_000)

    def write_all() -> None:
        output.write(write, data)
        os.close(write)

    writer = threading.Thread(target=write_all)
    writer.start()  # its first write finds no room
    got = b""
    while part := os.read(read, 10_000):
        got += part
    writer.join()
    os.close(read)

    assert got == full + data


def test_a_million_lines_use_little_memory_in_the_follower(tmp_path: Path, shown: list[tuple[int, bytes]]) -> None:
    import tracemalloc

    line = LineTagger(0, 3, "stdout").feed(b"step 1 loss 2.0\n")
    block = Chunk(0, line * 20_000)
    backend = Scripted(*[block] * 10, *(Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)))
    tracemalloc.start()
    followed(backend, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert sum(len(data) for _, data in shown) > 200_000 * 16
    assert peak < 16 * len(block.data) + 10_000_000


def test_messages_of_a_node_are_not_kept_however_many_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    """Each text is shown once while it is among the latest, and the texts themselves are not kept for that."""
    announcer = Announcer(["h"], WorkerOutput(frozenset()))
    told = [Event("stopping", {"reason": f"{number:04} {'x' * 100_000}"}) for number in range(3)]
    for event in told * 2:
        announcer.record(0, event)
    assert capfd.readouterr().err.count("stopping: ") == 3
    tracemalloc.start()
    try:
        for number in range(200):
            reason = f"{number:04} {'y' * 100_000}"
            announcer.record(0, Event("stopping", {"reason": reason}))
            announcer.record(0, Event("fabric", {"notes": [reason]}))
            capfd.readouterr()
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
        for number in range(30_000):
            assert announcer._is_new(str(number))
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_node_that_is_taken_back_because_of_a_cancel_is_reported_as_cancelled(
    capfd: pytest.CaptureFixture[str], cancelled: bool
) -> None:
    """Kubernetes takes a pod back in the same way for a preemption and for our cancel."""
    announcer = Announcer(["h"], WorkerOutput(frozenset()), is_cancelled=lambda: cancelled)

    announcer.record(0, Event("stopping", {"reason": "preempted"}))

    assert capfd.readouterr().err == f"stopping: {'cancelled' if cancelled else 'preempted'}\n"


def test_pieces_of_lines_of_any_number_of_ranks_are_shown_when_they_become_too_many(
    shown: list[tuple[int, bytes]],
) -> None:
    """A node may name any rank; the pieces wait for two seconds, in which it can name millions."""
    workers = WorkerOutput(None)
    for rank in range(200_000):
        workers.show(Output(0, rank, False, b"x", False), 0.0)
    assert 0 < len(workers._held) < 140_000

    _, rank, _ = next(iter(workers._held))
    workers.show(Output(0, rank, False, b"y", True), 0.0)
    workers.close()

    lines = b"".join(data for fd, data in shown if fd == output.STDOUT).splitlines()
    assert len(lines) == 200_000, [line for line in lines if not line.startswith(b"[0:")]
    assert workers._held_bytes == 0


def test_the_news_of_a_debugger_does_not_cut_its_prompt(
    shown: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt comes over another connection than the event, and at a terminal a character at a time."""
    monkeypatch.setattr(os, "isatty", lambda _fd: True)
    workers = WorkerOutput(frozenset({1}))
    begun = threading.Event()

    def write_prompt() -> None:
        for character in b"(Pdb) ":
            workers.pass_on(output.STDOUT, bytes([character]))
            begun.set()
            time.sleep(0.01)

    prompt = threading.Thread(target=write_prompt)
    prompt.start()
    begun.wait()
    Announcer(["a"], workers).record(0, Event("debugger", {"rank": 1, "message": "ValueError"}))
    prompt.join()

    said = b"".join(data for _, data in shown)
    assert said.startswith(b"(Pdb) \n")
    assert b"rank 1 stopped in the debugger: ValueError; leave it with q" in said
