"""What a launcher tells of the end, also if node 0 answers only after it has stopped to wait for that."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.notice import END
from launcher.agent.protocol import Event
from launcher.runs.outcome import Outcome
from launcher.service import notices
from tests.receivers import receiver

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.run import State


class Node:
    """A backend whose node 0 opens its outputs, or takes a notice on, once it may."""

    def __init__(self, slow: str, *, gives: bool = True) -> None:
        self._slow, self._gives = slow, gives
        self.asked, self.answers, self.closed = (threading.Event() for _ in range(3))
        self.taken: list[str] = []

    def open_outputs(self, *_: object) -> Any:
        self._wait("open")
        return self

    def take(self, name: str) -> bool:
        self._wait("take")
        self.taken.append(name)
        return self._gives

    def close(self) -> None:
        self.closed.set()

    def _wait(self, what: str) -> None:
        if what == self._slow:
            self.asked.set()
            assert self.answers.wait(60)


def ended(slow: str, path: Path) -> Node:
    """A run has ended, and node 0 answers only then."""
    node, run = Node(slow), SimpleNamespace(id="run", path=path, known={})
    receivers = SimpleNamespace(webhooks=(), others=(), secret="")
    teller = notices.Teller(run, node, receivers)  # type: ignore[arg-type]
    data = json.dumps({"about": {}, "number": 0})
    teller.event(0, Event("notice", {"what": END, "run": "run", "attempt": 0, "data": data}))
    assert node.asked.wait(60)
    teller.ended(Outcome(state="success", cause=None, nodes=(), restarts=0, duration_s=1.0))
    node.answers.set()
    assert node.closed.wait(60)
    return node


def test_the_end_is_left_to_a_node_that_answers_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_TAKE_S", 0.01)

    assert ended("open", tmp_path).taken == []
    assert "may be lost" not in capfd.readouterr().err


def test_that_a_notice_may_be_lost_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_TAKE_S", 0.01)
    ended("take", tmp_path)

    assert "a notice may be lost: node 0 of run does not answer" in capfd.readouterr().err


def waiting(url: str, path: Path, node: Node) -> notices.Teller:
    """An attempt was cancelled, and the run waits for the next one."""
    run: Any = SimpleNamespace(id="run", path=path, known={})
    receivers: Any = SimpleNamespace(webhooks=(url,), others=(), secret="")
    backend: Any = node
    teller = notices.Teller(run, backend, receivers)
    data = json.dumps({"about": {"state": "cancelled"}, "number": 0})
    teller.event(0, Event("notice", {"what": END, "run": "run", "attempt": 0, "data": data}))
    assert node.closed.wait(60)
    teller.waits()
    return teller


@pytest.mark.parametrize("by_us", [True, False])
@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_the_end_in_the_queue_is_told_after_the_preemption(
    tmp_path: Path, state: State, by_us: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_SURE_S", 0.0)
    node = Node("nothing", gives=by_us)
    with receiver() as there:
        teller = waiting(there.url, tmp_path, node)
        while by_us and not there.got:
            time.sleep(0.05)
        teller.ended(Outcome(state=state, cause=None, nodes=(), restarts=0, duration_s=1.0))

    told = [(each.body["id"], each.body["data"]["state"]) for each in there.got]
    assert told == [("run_0_end", "preempted"), ("run_0_end_1", state)][0 if by_us else 1 :]


def test_an_end_that_another_tells_is_not_told_again_by_a_run_that_has_not_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_SURE_S", 3600.0)
    node = Node("nothing", gives=False)
    with receiver() as there:
        teller = waiting(there.url, tmp_path, node)
        teller.ended(Outcome(state="failed", cause=None, nodes=(), restarts=0, duration_s=1.0))

    assert there.got == []
