"""What a follower does when a cluster misbehaves, with a scripted backend."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from launcher import output
from launcher.agent.protocol import LineTagger, encode_event
from launcher.backends._base import Chunk
from launcher.console import announce
from launcher.runs.liveness import Liveness
from launcher.service import limits, logs
from launcher.service.interrupts import Unattended
from launcher.service.leaving import Detached
from launcher.system.question import Question
from tests.cli.scripted import CAUSE, Scripted, followed, impatience, started  # noqa: F401 - a fixture
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path


class Unaware(Scripted):
    """Node 1's agent has exited, and node 0 runs until it is cancelled."""

    def liveness(self, handle: object) -> Liveness:
        return Liveness(nodes=("ended" if self.cancels else "running", "ended"))

    def cancel(self, handle: object, *, force: bool = False) -> None:
        why = {**CAUSE, "class": "cancelled", "message": "the run was cancelled"}
        self.chunks.append(Chunk(0, encode_event("done", 0, result="cancelled", cause=why)))
        super().cancel(handle, force=force)  # its end is reported once its last message can be read


def test_an_agent_that_exits_before_its_peers_can_miss_it_ends_them(
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
    """All had succeeded when node 0 was lost; it was started again, and waits."""

    def __init__(self) -> None:
        again = encode_event("agent_started", 0, host="h0", attempt=1)
        super().__init__(started(0), started(1), Chunk(1, encode_event("done", 1, result="success")), Chunk(0, again))


def test_a_node_that_comes_back_after_all_have_succeeded_is_ended_and_the_run_has_succeeded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backend = TooLate()

    _, outcome = followed(backend, tmp_path, may_start_again=True)

    assert backend.cancels[:1] == [False]
    assert (outcome.state, outcome.cause) == ("success", None)
    assert "node 0, lost at the end, came back after the others had exited and is ended" in capfd.readouterr().err


def pass_notes_on(monkeypatch: pytest.MonkeyPatch, backend: Silent | Mute, said: list[str]) -> None:
    """Pass the notes that a user is shown on to a backend."""

    def note(text: str) -> None:
        said.append(text)
        backend.noted.set()

    monkeypatch.setattr(output, "note", note)


class Silent(Scripted):
    """Both agents run, and one sends nothing any more; once that is reported, all end."""

    noted: threading.Event

    def liveness(self, handle: object) -> Liveness:
        if self.noted.is_set() and not self.over.is_set():
            self.chunks += [Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)]
            self.over.set()
        return Liveness(nodes=("running", "running"))


def test_a_node_that_runs_and_sends_nothing_is_reported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "SILENT_S", 0.01)
    backend, said = Silent(started(1)), list[str]()
    backend.noted = threading.Event()
    pass_notes_on(monkeypatch, backend, said)

    _, outcome = followed(backend, tmp_path)

    assert outcome.state == "success"
    assert [text.split(" for ")[0] for text in said if "has sent nothing" in text] == ["node 1 (h1) has sent nothing"]


class OutOfReach(Scripted):
    """Node 1 cannot be reached, and then can again; once both are reported, all end."""

    said: list[str]

    def liveness(self, handle: object) -> Liveness:
        if len(self.said) == 2 and not self.over.is_set():
            self.chunks += [Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)]
            self.over.set()
        if self.said:
            return Liveness(nodes=("running", "running"))
        return Liveness(nodes=("running", "unknown"), detail="no connection to h1: no answer")


def test_a_node_that_cannot_be_reached_and_then_can_is_reported_once_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    """Never reports the state of the run; its streams end once that was reported."""

    def __init__(self, *chunks: Chunk) -> None:
        super().__init__(*chunks)
        self.noted = threading.Event()

    def read(self, timeout_s: float) -> list[Chunk]:
        if self.noted.is_set() and not self.over.is_set():
            self.over.set()
            self.chunks += [Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)]
        return super().read(timeout_s)


def test_a_backend_that_fails_to_answer_for_long_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(announce, "UNANSWERED_S", 0.05)
    backend, said = Mute(started(0), started(1)), list[str]()
    pass_notes_on(monkeypatch, backend, said)

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


def test_a_run_that_cannot_be_ended_is_given_up_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORCE_S", 0.1)
    monkeypatch.setattr(limits, "GIVE_UP_S", 0.1)
    backend = Scripted(started(0), started(1), Chunk(0, encode_event("failure", 0, cause=CAUSE)))

    run, outcome = followed(backend, tmp_path)

    assert (outcome.state, outcome.exit_code) == ("unknown", None)
    assert run.result is None


class Late(Scripted):
    """Sends nothing more until it has been asked three times, each time in vain."""

    def read(self, timeout_s: float) -> list[Chunk]:
        return super().read(timeout_s) if self.answered >= 3 or len(self.chunks) > 2 else []


def test_following_continues_while_the_backend_does_not_answer(tmp_path: Path) -> None:
    backend = Late(started(0), *(Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)))

    assert followed(backend, tmp_path)[1].state == "success"

    assert backend.answered >= 3
    assert not backend.cancels


class Stuck(Scripted):
    """Does not answer until the test is over, and sends nothing until it has been asked."""

    def read(self, timeout_s: float) -> list[Chunk]:
        return super().read(timeout_s) if self.asked.is_set() else []

    def liveness(self, handle: object) -> Liveness:
        self.asked.set()
        self.over.wait(60)
        return super().liveness(handle)


def test_following_does_not_wait_for_a_backend_that_takes_long_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_TIMEOUT_S", 0.01)
    backend = Stuck(started(0), *(Chunk(node, encode_event("done", node, result="success")) for node in (0, 1)))

    assert followed(backend, tmp_path)[1].state == "success"

    assert backend.asked.is_set()
    assert not backend.answered, "reading continued while the question was open"
    backend.over.set()


class LastMoment(Scripted):
    """Both agents have exited when the first question comes, and node 1's wrote a line right before."""

    def liveness(self, handle: object) -> Liveness:
        if not self.asked.is_set():
            self.asked.set()
            self.chunks.append(Chunk(1, LineTagger(1, 1, "stdout").feed(b"last words\n")))
        return Liveness(nodes=("ended", "ended"))


def test_a_line_written_right_before_its_agent_exited_is_in_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    run = dataclasses.replace(run, handle=run.known, plan={"nodes": [{"host": "a"}, {"host": "b"}], "min_nodes": 2})
    backend: Any = LastMoment(started(0), started(1))

    told = [(node, data) for node, data in logs._live_blocks(run, backend, Counter(), follow=True) if data]

    assert told[2:] == [(1, b"[1:1] last words\n")]


class Closing(Scripted):
    """A terminal that is closed once the run's end was asked for, of a cluster that takes until the launcher leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts, self.leaves = Unattended(), threading.Event()
        self.interrupts.stops = 1

    def cancel(self, handle: object, *, force: bool = False) -> None:
        self.interrupts.hung_up = True
        assert self.leaves.wait(60)
        super().cancel(handle, force=force)


def test_a_run_is_cancelled_though_the_terminal_is_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Closing()
    wait = Question.answered

    def answered(question: Question[Any], timeout_s: float) -> bool:
        if timeout_s > 1.0:
            backend.leaves.set()
        return wait(question, timeout_s)

    monkeypatch.setattr(Question, "answered", answered)
    monkeypatch.setattr(limits, "READ_TIMEOUT_S", 0.01)

    with pytest.raises(Detached):
        followed(backend, tmp_path, backend.interrupts)

    assert backend.cancels == [False]
