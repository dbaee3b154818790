"""A try could start while the disk has no room for the decision."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from launcher import output
from launcher.agent.protocol import encode_event
from launcher.backends._base import Chunk
from launcher.runs import directories, races, records
from launcher.runs.liveness import Liveness
from launcher.service import finding, observe
from launcher.service.interrupts import Unattended
from launcher.service.leaving import Leaving
from launcher.service.race import Contest
from tests.runs.test_other_clocks import race
from tests.runs.test_removal import fill

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.handle import Handle
    from launcher.runs.records import Run

NAME, OTHER = "train-20250101-000000-abcd", "train-20250101-000000-abce"
PAGE = 4096


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


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The backend of all runs."""
    found = Cluster()
    monkeypatch.setattr(observe, "backend_of", lambda _run: found)
    return found


def submitted(directory: Path) -> tuple[Run, Run]:
    """A run that is queued on one cluster, and its try there."""
    run = race(directory, OTHER)
    tried = directories.read(run.path / races.TRIES, OTHER)
    return run, records.record_handle(tried, {"run_dir": str(tried.path)})


def granted_at(run: Run) -> float | None:
    """When its try was granted the claim, as is recorded."""
    noted = directories.recorded(run.root, run.id).race
    assert noted
    return noted["tries"][0]["granted_at"]


def test_it_gets_the_run_once_there_is_room_to_record_it(
    small_disk: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def warn(text: str) -> None:
        told.append(text)
        if "could start it" in text:
            assert not cluster.granted, "not before it is recorded"
            (small_disk / "more").unlink()

    monkeypatch.setattr(output, "warn", warn)
    run, tried = submitted(small_disk / "runs")
    contest = Contest(run, Unattended())
    contest.go_on()
    fill(small_disk)

    won = contest.decided(Leaving(Unattended()))

    assert won is not None
    assert (won.id, won.path, cluster.granted) == (NAME, tried.path, 1)
    assert [text for text in told if "No space left on device" in text and text.endswith("; it is tried again")]
    assert won.won
    assert won.won["tries"][0]["granted_at"] is not None


def test_what_had_no_room_beside_the_decision_is_recorded_later(small_disk: Path, cluster: Cluster) -> None:
    run, _ = submitted(small_disk / "runs")
    contest = Contest(run, Unattended())
    contest.go_on()
    fill(small_disk)
    os.truncate(small_disk / "more", (small_disk / "more").stat().st_size - PAGE)  # claim.json fits, run.json does not

    assert contest.decided(Leaving(Unattended())) is not None

    assert granted_at(run) is None
    (small_disk / "more").unlink()
    contest.tidied()
    assert granted_at(run) is not None
    assert cluster.granted == 1


def test_a_run_that_has_ended_is_not_granted_again_as_that_had_no_room(
    tmp_path: Path, cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    run, tried = submitted(tmp_path)
    races.decide(run, OTHER, "lab")
    records.finish(tried, {"state": "success", "exit_code": 0, "cause": None, "nodes": []})

    finding.find(tmp_path, NAME)

    assert granted_at(run) is not None
    assert cluster.granted == 0
    assert "was not told" not in capfd.readouterr().err
