"""A try could start while the disk has no room for the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.protocol import encode_event
from launcher.backends._base import Chunk
from launcher.runs import directories, races, records
from launcher.runs.liveness import Liveness
from launcher.service import observe
from launcher.service.interrupts import Unattended
from launcher.service.leaving import Leaving
from launcher.service.race import Contest
from tests.runs.test_other_clocks import race
from tests.runs.test_removal import fill

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from launcher.runs.handle import Handle

NAME, OTHER = "train-20250101-000000-abcd", "train-20250101-000000-abce"


class Cluster:
    """A backend, its stream and its outputs: node 0 of each run wants the claim."""

    name, ask_every_s = "local", 1.0

    def __init__(self) -> None:
        self.granted = 0

    def recover(self, handle: Handle) -> Handle:
        return handle

    def liveness(self, _handle: Handle) -> Liveness:
        return Liveness(nodes=("running",))

    def open_stream(self, _handle: Handle) -> Cluster:
        return self

    def open_outputs(self, _handle: Handle, _node: int) -> Cluster:
        return self

    def read(self, _timeout_s: float) -> list[Chunk]:
        return [Chunk(0, encode_event("claim_wanted", 0))]

    def grant(self) -> None:
        self.granted += 1

    def close(self) -> None:
        """Nothing is open."""


def test_it_gets_the_run_once_there_is_room_to_record_it(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, told = Cluster(), list[str]()
    monkeypatch.setattr(observe, "backend_of", lambda _run: cluster)

    def warn(text: str) -> None:
        told.append(text)
        if "could start it" in text:
            assert not cluster.granted, "not before it is recorded"
            (small_disk / "more").unlink()

    monkeypatch.setattr(output, "warn", warn)
    run = race(small_disk / "runs", OTHER)
    tried = directories.read(run.path / races.TRIES, OTHER)
    records.record_handle(tried, {"run_dir": str(tried.path)})
    contest = Contest(run, Unattended())
    contest.go_on()
    fill(small_disk)

    won = contest.decided(Leaving(Unattended()))

    assert won is not None
    assert (won.id, won.path, cluster.granted) == (NAME, tried.path, 1)
    assert [text for text in told if "No space left on device" in text and text.endswith("; it is tried again")]
    assert won.won
    assert won.won["tries"][0]["granted_at"] is not None
