"""Events of runs with many nodes: how often the outcome, which depends on all nodes, is derived."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from distlaunch import _events
from launcher.agent.protocol import LineTagger, encode_event
from launcher.backends._base import Chunk
from launcher.runs import records
from launcher.runs.outcome import RunReport
from launcher.service import logs, observe
from tests.cli.scripted import Scripted
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODES = 200


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states that were derived."""
    states: list[str] = []
    outcome = RunReport.outcome

    def counted(self: RunReport, *args: Any, **kwargs: Any) -> Any:
        states.append((found := outcome(self, *args, **kwargs)).state)
        return found

    monkeypatch.setattr(RunReport, "outcome", counted)
    return states


def cause(node: int, *, secondary: bool = False) -> dict[str, Any]:
    return {"class": "user_code", "message": f"of {node}", "node": node, "time": 9.0 - node, "secondary": secondary}


def told(node: int) -> Iterator[bytes]:
    """What the agent of a node that fails tells, one event after the other."""
    yield encode_event("agent_started", node, host=f"h{node}")
    yield encode_event("host_facts", node)
    yield encode_event("worker_started", node, rank=node)
    for _ in range(20):
        yield encode_event("heartbeat", node, workers=1)
    yield encode_event("failure", node, cause=cause(node, secondary=node != NODES - 1))
    yield encode_event("done", node, result="failed", cause=cause(node, secondary=node != NODES - 1))


def of_many(tmp_path: Path) -> records.Run:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    return replace(run, plan={"nodes": [{"host": f"h{node}"} for node in range(NODES)], "min_nodes": NODES})


def test_the_outcome_of_many_nodes_is_not_derived_for_each_of_their_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, derived: list[str]
) -> None:
    def blocks(*_args: Any, **_more: Any) -> Iterator[tuple[int | None, bytes]]:
        for each in zip(*(list(told(node)) for node in range(NODES)), strict=True):
            yield from enumerate(each)
            yield None, b""

    monkeypatch.setattr(logs, "blocks", blocks)
    events = list(_events.of_streams(of_many(tmp_path), follow=True))

    states = [event.state for event in events if isinstance(event, distlaunch.StateChanged)]
    assert states == ["starting", "running", "stopping"]
    causes = [event.cause.node for event in events if isinstance(event, distlaunch.CauseKnown)]
    assert causes == [0, NODES - 1], "the first that is told, and once all have been read, the first that was"
    progress = [event.phase for event in events if isinstance(event, distlaunch.Progress)]
    assert list(dict.fromkeys(progress)) == ["queued", "starting", "importing", "meeting"]
    assert len([event for event in events if isinstance(event, distlaunch.NodeEvent)]) == 25 * NODES
    assert len(derived) < 20


class Talks(Scripted):
    """Gives its chunks one by one, and then lines of node 2 without end."""

    def read(self, timeout_s: float) -> list[Chunk]:
        return super().read(timeout_s) if self.chunks else [Chunk(2, LineTagger(2, 2, "stdout").feed(b"more\n"))]


def test_causes_that_become_known_later_are_told_of_a_run_that_never_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [Chunk(node, encode_event("failure", node, cause=cause(node))) for node in (0, 1)]
    began = [Chunk(node, encode_event("agent_started", node, host=f"h{node}")) for node in range(3)]
    backend: Any = Talks(*began, *failed)
    monkeypatch.setattr(observe, "backend_of", lambda _run: backend)
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    run = replace(run, handle=run.known, plan={"nodes": [{"host": f"h{node}"} for node in range(3)], "min_nodes": 3})

    events = islice(_events.of_streams(run, follow=True), 1000)

    assert [each.cause.node for each in events if isinstance(each, distlaunch.CauseKnown)] == [0, 1]


def test_the_events_of_a_run_that_has_ended_need_no_outcome(tmp_path: Path, derived: list[str]) -> None:
    run = of_many(tmp_path)
    run.stream_path(0).parent.mkdir(parents=True)
    run.stream_path(0).write_bytes(b"".join(told(0)))
    records.finish(run, {"state": "failed", "exit_code": 1, "cause": None, "nodes": []})

    for follow in (False, True):
        assert len(list(_events.of_streams(run, follow=follow))) == 25
    assert not derived
