"""A backend whose streams and answers a test scripts: real clusters misbehave too rarely for a test."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import encode_event
from launcher.backends._base import Chunk
from launcher.errors import BackendUnavailableError
from launcher.runs import records
from launcher.runs.liveness import Liveness
from launcher.service import limits
from launcher.service.follow import Follower, View
from launcher.service.interrupts import Interrupts, Unattended
from launcher.service.leaving import Leaving
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

CAUSE = {"class": "user_code", "message": "boom", "host": "h", "node": 0, "rank": 0, "time": 5.0, "secondary": False}


class Scripted:
    """A backend and its stream: gives its chunks one by one, then nothing, and records what it was asked."""

    name = "scripted"
    ask_every_s = 10.0
    more_cpus = ""

    def __init__(self, *chunks: Chunk, ends_after_cancels: int = 99) -> None:
        self.chunks, self.cancels, self.ends_after_cancels = list(chunks), list[bool](), ends_after_cancels
        self.asked, self.over, self.answered = threading.Event(), threading.Event(), 0

    def read(self, timeout_s: float) -> list[Chunk]:
        if not self.chunks:
            self.over.wait(min(timeout_s, 0.01))
        return [self.chunks.pop(0)] if self.chunks else []

    def omit(self, wanted: object) -> None:
        pass

    def close(self) -> None:
        pass

    def brings_all(self, handle: object) -> bool:
        return True

    def open_stream(self, handle: object, offsets: object = None) -> Scripted:
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
    """Seconds become hundredths; calls of the backend are waited for, and a run has unlimited time to end."""
    monkeypatch.setattr(limits, "POLL_S", (0.01, 0.1))
    for name, seconds in (
        ("HANG_S", 0.1),
        ("SETTLE_S", 0.05),
        ("READ_TIMEOUT_S", 100.0),
        ("FORCE_S", 600.0),
        ("GIVE_UP_S", 600.0),
    ):
        monkeypatch.setattr(limits, name, seconds)


def followed(
    backend: Scripted,
    tmp_path: Path,
    interrupts: Interrupts | Unattended | None = None,
    *,
    nodes_asked_for: str = "2",
    **about: Any,
) -> tuple[records.Run, Any]:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    plan = {"nodes": [{"host": "a"}, {"host": "b"}], "min_nodes": 2, "grace_s": 0.1, **about}
    run = records.Run(id=run.id, path=run.path, created=run.created, backend="x", nodes=nodes_asked_for, plan=plan)
    run = records.record_handle(run, run.known)
    backend_: Any = backend
    return run, Follower(run, backend_, View(None), Leaving(interrupts or Interrupts())).follow()


def started(node: int) -> Chunk:
    return Chunk(node, encode_event("agent_started", node, host=f"h{node}"))
