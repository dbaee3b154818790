"""A launcher was killed while it submitted a try, and another one goes on with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.errors import BackendUnavailableError, CommandError
from launcher.runs import directories, races, records
from launcher.service import observe, rival
from launcher.service.interrupts import Unattended
from launcher.service.leaving import Leaving
from launcher.service.race import Contest
from launcher.system import storage
from tests.runs.test_other_clocks import race
from tests.runs.test_race_full_disk import NAME, OTHER, Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.handle import Handle
    from launcher.runs.records import Run

SILENT = "squeue: error: Unable to contact slurm controller (connect failure)"


class Silent(Cluster):
    """One that answers the third question."""

    def __init__(self, *, has_it: bool) -> None:
        super().__init__()
        self._has_it, self.questions = has_it, 0

    def recover(self, handle: Handle) -> Handle | None:  # type: ignore[override]
        self.questions += 1
        if self.questions < 3:
            raise BackendUnavailableError(SILENT)
        return handle if self._has_it else None


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run."""
    monkeypatch.setattr(rival, "_AGAIN_S", 0.01)
    run = race(tmp_path, OTHER)
    tried = directories.read(run.path / races.TRIES, OTHER)
    records.record_handle(tried, {"run_dir": str(tried.path), "submitting": True})
    return run


def go_on(run: Run) -> tuple[Contest, Run | None]:
    """Go on with the run until a try has it."""
    contest = Contest(run, Unattended())
    contest.go_on()
    return contest, contest.decided(Leaving(Unattended()))


def test_a_cluster_that_does_not_answer_is_asked_again(cut_off: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Silent(has_it=True)
    monkeypatch.setattr(observe, "backend_of", lambda _run: cluster)

    _, won = go_on(cut_off)

    assert won is not None
    assert (won.id, won.path.name, cluster.granted) == (NAME, OTHER, 1)


def test_one_that_has_nothing_of_it_is_left_out(cut_off: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Silent(has_it=False)
    monkeypatch.setattr(observe, "backend_of", lambda _run: cluster)

    with pytest.raises(CommandError, match="no cluster is left: lab: it was never submitted"):
        go_on(cut_off)

    ended = directories.read(cut_off.root, NAME)
    assert ended.race
    assert ended.race["tries"][0]["ended_at"] is not None
    assert (ended.result or {}).get("state") == "failed"


def test_what_breaks_before_it_has_answered_leaves_the_try_open(cut_off: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Cluster):
        def recover(self, _handle: Handle) -> Handle:
            raise problems.pop(0) if problems else BackendUnavailableError(SILENT)

    problems = [RuntimeError("a bug")]
    monkeypatch.setattr(observe, "backend_of", lambda _run: Broken())

    with pytest.raises(CommandError, match="no cluster is left: lab: RuntimeError"):
        go_on(cut_off)

    left = directories.read(cut_off.root, NAME)
    assert left.race
    assert left.race["tries"][0]["ended_at"] is None
    assert storage.read_json(left.result_path) is None
