"""`top` while its run is started again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import encode_event, line_mark
from launcher.backends._base import Chunk
from launcher.runs import directories, races, records, restarts
from launcher.runs.liveness import Liveness
from launcher.service import observe, top
from testbed import wait_until
from tests.runs.test_other_clocks import race
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.handle import Handle

NAME, OTHER = "train-20250101-000000-abcd", "train-20250101-000000-abce"


class Cluster:
    """A backend on which every run goes on."""

    name = "ansible"

    def __init__(self) -> None:
        self.opened: list[str] = []
        """The first host of the runs whose streams were opened."""

    def liveness(self, _handle: Handle) -> Liveness:
        return Liveness(nodes=("running",))

    def open_stream(self, handle: Handle, _offsets: dict[int, int]) -> Opened:
        (host,) = handle["hosts"]
        self.opened.append(host)
        return Opened(host)


class Opened:
    """The streams of a run, in which its only rank has written the name of its host."""

    def __init__(self, host: str) -> None:
        self._chunks = [Chunk(0, line_mark(0, 0) + host.encode() + b"\n")]

    def read(self, timeout_s: float) -> list[Chunk]:
        if not self._chunks:
            time.sleep(timeout_s)
            return []
        return [self._chunks.pop()]

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("moved", [False, True], ids=["started again", "moved"])
def test_it_goes_on_with_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    cluster = Cluster()
    monkeypatch.setattr(observe, "backend_of", lambda _run: cluster)
    monkeypatch.setattr(top, "_ASK_S", 0.05)
    run = race(tmp_path, OTHER) if moved else make(tmp_path, NAME, result=None)
    run = records.record_handle(run, {"run_dir": str(run.path), "hosts": ["n1"]})
    failed = encode_event("agent_started", 0, host="n1", attempt=0) + encode_event("done", 0, result="failed")
    run.stream_path(0).parent.mkdir(parents=True)
    run.stream_path(0).write_bytes(failed)
    watch = first = top.Watch(directories.find(tmp_path, NAME))
    watch.start()
    try:
        if moved:
            there = directories.read(run.path / races.TRIES, OTHER)
            restarts.start_again(there, {"run_dir": str(there.path), "hosts": ["m1"]}, 1)
            races.decide(run, OTHER, "lab")
        else:
            restarts.start_again(run, {"run_dir": str(run.path), "hosts": ["m1"]}, 1)
        found = [first]

        def goes_on() -> bool:
            found.append(first.later())
            return found[-1] is not first

        wait_until("the next attempt to be shown", goes_on, limit_s=20)
        watch = found[-1]
        wait_until("its output to be read", lambda: watch.tail(0) == b"m1\n", limit_s=20)

        assert (watch.run.id, watch.run.attempt, watch.run.hosts) == (NAME, 1, ["m1"])
        shown = watch.now()
        assert [node["host"] for node in shown["nodes"]] == ["m1"]
        assert [(rank["rank"], rank["host"]) for rank in shown["ranks"]] == [(0, "m1")]
        assert cluster.opened == ["n1", "m1"]
    finally:
        watch.close()
        first.close()
