"""What a follower does when a cluster misbehaves, with a scripted backend: real ones misbehave too seldom for a test."""

from __future__ import annotations

import dataclasses
import os
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from launcher import output
from launcher.agent.protocol import Event, LineTagger, Output, encode_event
from launcher.backends._base import Chunk
from launcher.console import announce
from launcher.console.announce import Announcer
from launcher.console.worker_output import WorkerOutput
from launcher.errors import BackendUnavailableError
from launcher.runs import records
from launcher.runs.liveness import Liveness
from launcher.service import limits, logs
from launcher.service.follow import Follower
from launcher.service.interrupts import Interrupts
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

CAUSE = {"class": "user_code", "message": "boom", "host": "h", "node": 0, "rank": 0, "time": 5.0, "secondary": False}


class Scripted:
    """Both backend and stream: gives its chunks one by one, then nothing; knows what it was asked for."""

    name = "scripted"
    ask_every_s = 10.0

    def __init__(self, *chunks: Chunk, ends_after_cancels: int = 99) -> None:
        self.chunks, self.cancels, self.ends_after_cancels = list(chunks), list[bool](), ends_after_cancels
        self.asked, self.over, self.answered = threading.Event(), threading.Event(), 0

    def read(self, timeout_s: float) -> list[Chunk]:
        if not self.chunks:
            self.over.wait(min(timeout_s, 0.01))
        return [self.chunks.pop(0)] if self.chunks else []

    def close(self) -> None:
        pass

    def open_stream(self, handle: object) -> Scripted:
        return self

    def liveness(self, handle: object) -> Liveness:
        self.asked.set()
        self.answered += 1
        if not self.cancels:
            raise BackendUnavailableError("the controller does not answer")
        over = len(self.cancels) >= self.ends_after_cancels
        return Liveness(nodes=("ended" if over else "running",) * 2)

    def cancel(self, handle: object, *, force: bool = False) -> None:
        self.cancels.append(force)

    def signal(self, handle: object, signum: int) -> None:
        raise AssertionError

    def release(self, handle: object) -> None:
        pass


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become hundredths; what the backend is asked or told is waited for, and a run has any time to end."""
    monkeypatch.setattr(limits, "POLL_S", (0.01, 0.1))
    for name, seconds in (
        ("HANG_S", 0.1),
        ("SETTLE_S", 0.05),
        ("READ_TIMEOUT_S", 100.0),
        ("FORCE_S", 600.0),
        ("GIVE_UP_S", 600.0),
    ):
        monkeypatch.setattr(limits, name, seconds)


def followed(backend: Scripted, tmp_path: Path, **about: Any) -> tuple[records.Run, Any]:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    plan = {"nodes": [{"host": "a"}, {"host": "b"}], "min_nodes": 2, "grace_s": 0.1, **about}
    run = records.Run(id=run.id, path=run.path, created=run.created, backend="x", plan=plan)
    run = records.record_handle(run, run.known)
    backend_: Any = backend
    return run, Follower(run, backend_, ranks=None, interrupts=Interrupts()).follow()


class Unaware(Scripted):
    """Node 1's agent is gone, and node 0 goes on until it is cancelled."""

    def liveness(self, handle: object) -> Liveness:
        return Liveness(nodes=("ended" if self.cancels else "running", "ended"))

    def cancel(self, handle: object, *, force: bool = False) -> None:
        why = {**CAUSE, "class": "cancelled", "message": "the run was cancelled"}
        self.chunks.append(Chunk(0, encode_event("done", 0, result="cancelled", cause=why)))
        super().cancel(handle, force=force)  # its end is told once its last word can be read


def test_an_agent_that_is_gone_before_its_peers_can_miss_it_ends_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "HANG_S", 600.0)
    monkeypatch.setattr(limits, "UNAWARE_S", 0.02)
    backend = Unaware(started(0))

    _, outcome = followed(backend, tmp_path)

    assert backend.cancels[0] is False
    assert outcome.state == "failed"
    assert outcome.cause["message"] == "the agent on host b exited without reporting a result"
    assert "other nodes still run without it; ending them" in capfd.readouterr().err


class TooLate(Unaware):
    """All had ended well when node 0 was lost; it was started again, and waits."""

    def __init__(self) -> None:
        again = encode_event("agent_started", 0, host="h0", attempt=1)
        super().__init__(started(0), started(1), Chunk(1, encode_event("done", 1, result="success")), Chunk(0, again))


def test_a_node_that_comes_back_when_all_have_ended_well_is_ended_and_the_run_has_succeeded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backend = TooLate()

    _, outcome = followed(backend, tmp_path, may_start_again=True)

    assert backend.cancels[:1] == [False]
    assert (outcome.state, outcome.cause) == ("success", None)
    assert "node 0, lost at the end, came back after the others had exited and is ended" in capfd.readouterr().err


def started(node: int) -> Chunk:
    return Chunk(node, encode_event("agent_started", node, host=f"h{node}"))


def tell(monkeypatch: pytest.MonkeyPatch, backend: Silent | Mute, said: list[str]) -> None:
    """A backend hears what a person is told."""

    def note(text: str) -> None:
        said.append(text)
        backend.told.set()

    monkeypatch.setattr(output, "note", note)


class Silent(Scripted):
    """Both agents run, and one says nothing any more; once that is told, all end."""

    told: threading.Event

    def liveness(self, handle: object) -> Liveness:
        if self.told.is_set() and not self.over.is_set():
            self.chunks += [Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)]
            self.over.set()
        return Liveness(nodes=("running", "running"))


def test_a_node_that_says_nothing_though_it_runs_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "SILENT_S", 0.01)
    backend, said = Silent(started(1)), list[str]()
    backend.told = threading.Event()
    tell(monkeypatch, backend, said)

    _, outcome = followed(backend, tmp_path)

    assert outcome.state == "success"
    assert [text.split(" for ")[0] for text in said if "has sent nothing" in text] == ["node 1 (h1) has sent nothing"]


class OutOfReach(Scripted):
    """Node 1 is not reached, is told of, and is reached again; once that is told too, all end."""

    said: list[str]

    def liveness(self, handle: object) -> Liveness:
        if len(self.said) == 2 and not self.over.is_set():
            self.chunks += [Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)]
            self.over.set()
        if self.said:
            return Liveness(nodes=("running", "running"))
        return Liveness(nodes=("running", "unknown"), detail="no connection to h1: no answer")


def test_a_node_that_is_not_reached_and_then_again_is_told_once_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(announce, "UNREACHED_S", 0.05)
    backend = OutOfReach(started(0), started(1))
    backend.said = []
    monkeypatch.setattr(output, "note", backend.said.append)

    _, outcome = followed(backend, tmp_path)

    assert outcome.state == "success"
    assert backend.said == [
        "node 1 (h1) has not been reached for 0 s: no connection to h1: no answer",
        "node 1 (h1) is reached again",
    ]


class Mute(Scripted):
    """Never says how the run is; its streams end once that was told."""

    def __init__(self, *chunks: Chunk) -> None:
        super().__init__(*chunks)
        self.told = threading.Event()

    def read(self, timeout_s: float) -> list[Chunk]:
        if self.told.is_set() and not self.over.is_set():
            self.over.set()
            self.chunks += [Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)]
        return super().read(timeout_s)


def test_that_a_backend_says_for_long_that_it_cannot_say_anything_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(announce, "UNANSWERED_S", 0.05)
    backend, said = Mute(started(0), started(1)), list[str]()
    tell(monkeypatch, backend, said)

    _, outcome = followed(backend, tmp_path)

    assert outcome.state == "success"
    (text,) = said
    assert text.endswith("scripted does not tell how the run is: the controller does not answer")


def test_nodes_that_outlive_a_failure_are_ended_and_the_failure_stays_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORCE_S", 0.1)
    failed = Chunk(0, encode_event("done", 0, result="failed", cause=CAUSE))
    backend = Scripted(started(0), started(1), failed, ends_after_cancels=2)

    run, outcome = followed(backend, tmp_path)

    assert backend.cancels == [False, True], "asked first, forced when that did not help"
    assert (outcome.state, outcome.cause) == ("failed", CAUSE)
    assert run.result == outcome.to_json()


def test_a_run_that_cannot_be_ended_is_given_up_without_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORCE_S", 0.1)
    monkeypatch.setattr(limits, "GIVE_UP_S", 0.1)
    backend = Scripted(started(0), started(1), Chunk(0, encode_event("failure", 0, cause=CAUSE)))

    run, outcome = followed(backend, tmp_path)

    assert (outcome.state, outcome.exit_code) == ("unknown", None)
    assert run.result is None


class Late(Scripted):
    """Says nothing more before it was asked three times, each time in vain."""

    def read(self, timeout_s: float) -> list[Chunk]:
        return super().read(timeout_s) if self.answered >= 3 or len(self.chunks) > 2 else []


def test_a_backend_that_does_not_answer_does_not_end_the_following(tmp_path: Path) -> None:
    backend = Late(started(0), *(Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)))

    assert followed(backend, tmp_path)[1].state == "success"

    assert backend.answered >= 3
    assert not backend.cancels


class Stuck(Scripted):
    """Does not answer before the test is over, and says nothing before it was asked."""

    def read(self, timeout_s: float) -> list[Chunk]:
        return super().read(timeout_s) if self.asked.is_set() else []

    def liveness(self, handle: object) -> Liveness:
        self.asked.set()
        self.over.wait(60)
        return super().liveness(handle)


def test_a_backend_that_takes_long_to_answer_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_TIMEOUT_S", 0.01)
    backend = Stuck(started(0), *(Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)))

    assert followed(backend, tmp_path)[1].state == "success"

    assert backend.asked.is_set()
    assert not backend.answered, "it went on reading while the question was open"
    backend.over.set()


class LastMoment(Scripted):
    """Both agents are gone when somebody asks for the first time, and node 1's has written a line right before."""

    def liveness(self, handle: object) -> Liveness:
        if not self.asked.is_set():
            self.asked.set()
            self.chunks.append(Chunk(1, LineTagger(1, 1, "stdout").feed(b"last words\n")))
        return Liveness(nodes=("ended", "ended"))


def test_a_line_that_was_written_right_before_its_agent_was_gone_is_among_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    run = dataclasses.replace(run, handle=run.known, plan={"nodes": [{"host": "a"}, {"host": "b"}], "min_nodes": 2})
    backend: Any = LastMoment(started(0), started(1))

    told = [(node, data) for node, data in logs._live_blocks(run, backend, follow=True) if data]

    assert told[2:] == [(1, b"1.1| last words\n")]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """What is written, in place of the terminal."""
    written: list[tuple[int, bytes]] = []

    def write(fd: int, data: bytes) -> bool:
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


def test_a_prompt_of_a_rank_that_is_shown_otherwise_from_now_on_is_shown_at_once_and_its_line_stays_open(
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

    def tell() -> None:
        output.write(write, data)
        os.close(write)

    writer = threading.Thread(target=tell)
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


def test_what_a_node_says_is_not_kept_however_much_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """Each text is told once while it is among the latest, and none is kept to know that."""
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
def test_a_node_that_is_taken_back_because_of_a_cancel_is_told_as_cancelled(
    capfd: pytest.CaptureFixture[str], cancelled: bool
) -> None:
    """Kubernetes takes a pod back in the same way, whoever has asked for it."""
    announcer = Announcer(["h"], WorkerOutput(frozenset()), is_cancelled=lambda: cancelled)

    announcer.record(0, Event("stopping", {"reason": "preempted"}))

    assert capfd.readouterr().err == f"stopping: {'cancelled' if cancelled else 'preempted'}\n"


def test_pieces_of_lines_of_any_number_of_ranks_are_shown_when_they_become_too_many(shown: list[tuple[int, bytes]]) -> None:
    """A node may name any; the pieces wait for two seconds, in which it can name millions."""
    workers = WorkerOutput(None)
    for rank in range(200_000):
        workers.show(Output(0, rank, False, b"x", False), 0.0)
    assert 0 < len(workers._held) < 140_000

    _, rank, _ = next(iter(workers._held))
    workers.show(Output(0, rank, False, b"y", True), 0.0)
    workers.close()

    assert b"".join(data for _, data in shown).count(b"\n") == 200_000
    assert workers._held_bytes == 0
