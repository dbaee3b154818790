"""`top` while its run is started again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import encode_event
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
    """A backend and its streams, on which every run goes on."""

    name = "ansible"

    def liveness(self, _handle: Handle) -> Liveness:
        return Liveness(nodes=("running",))

    def open_stream(self, _handle: Handle, _offsets: dict[int, int]) -> Cluster:
        return self

    def read(self, _timeout_s: float) -> list[object]:
        return []

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("moved", [False, True], ids=["started again", "moved"])
def test_it_goes_on_with_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    monkeypatch.setattr(observe, "backend_of", lambda _run: Cluster())
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
        wait_until("the next attempt to be shown", lambda: first.later() is not first, limit_s=20)
        watch = first.later()

        assert (watch.run.id, watch.run.attempt, watch.run.hosts) == (NAME, 1, ["m1"])
        assert [node["host"] for node in watch.now()["nodes"]] == ["m1"]
    finally:
        watch.close()
        first.close()
