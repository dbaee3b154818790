"""Runs that are removed while something else happens to them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from launcher.errors import RequestError
from launcher.runs import directories, lock, races, records, restarts
from launcher.runs.liveness import Liveness
from launcher.service import observe, removal
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.race import Race
    from launcher.runs.handle import Handle

NAME = "train-20250101-000000-abcd"
OTHER = "train-20250101-000000-abce"


def fill(disk: Path) -> None:
    """Leave no room on this disk."""
    with suppress(OSError), open(disk / "more", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


class Cluster:
    """A backend on which each run runs."""

    def __init__(self) -> None:
        self.removed: list[Handle] = []

    def liveness(self, _handle: Handle) -> Liveness:
        return Liveness(nodes=("running",))

    def remove(self, handle: Handle) -> None:
        self.removed.append(handle)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The backend of all runs."""
    found = Cluster()
    monkeypatch.setattr(observe, "backend_of", lambda _run: found)
    return found


def test_a_run_that_was_started_again_after_the_check_is_kept(tmp_path: Path, cluster: Cluster) -> None:
    make(tmp_path, NAME)
    ended = directories.find(tmp_path, NAME)
    removal.check(ended)

    restarts.start_again(ended, {"run_dir": str(ended.path)}, attempt=1)
    with pytest.raises(RequestError, match="has not ended"):
        removal.remove(ended)

    assert cluster.removed == []
    assert directories.find(tmp_path, NAME).attempt == 1


def test_a_run_that_was_moved_and_is_being_started_again_is_kept(tmp_path: Path, cluster: Cluster) -> None:
    run = make(tmp_path, NAME)
    race: Race = {"start": "move", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": []}
    races.decide(records.note_race(run, race), OTHER, "lab")
    there = make(run.path / races.TRIES, OTHER)
    records.record_handle(there, {"run_dir": str(there.path)})

    moved = directories.find(tmp_path, NAME)
    with (
        lock.hold(moved.whole_path, "requeue", submits=True),
        pytest.raises(RequestError, match="is being changed by `distlaunch requeue`"),
    ):
        removal.remove(moved)

    assert cluster.removed == []
    assert directories.find(tmp_path, NAME).path == there.path
    removal.remove(moved)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_which_the_chosen_try_is_missing_can_be_removed(tmp_path: Path, cluster: Cluster) -> None:
    run = make(tmp_path, NAME)
    race: Race = {"start": "first", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": []}
    races.decide(records.note_race(run, race), OTHER, "lab")

    removal.remove(directories.find(tmp_path, NAME), force=True)

    assert list(tmp_path.iterdir()) == []
    assert cluster.removed == []


def test_what_a_killed_launch_has_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = (tmp_path / f".{NAME}.999999999-0000000{number}" for number in range(2))
    for path in (old, new):
        path.mkdir()
        (path / "run.json").touch()
    os.utime(old, (0, 0))

    removal.sweep(tmp_path)

    assert list(tmp_path.iterdir()) == [new]


def test_a_run_is_removed_from_a_full_disk_unless_a_process_changes_it(small_disk: Path) -> None:
    run, busy = (make(small_disk / "runs", name) for name in (NAME, OTHER))
    with lock.hold(busy.path, "requeue"):
        fill(small_disk)
        with pytest.raises(RequestError, match="is being changed by `distlaunch requeue`"):
            removal.remove(busy)
        removal.remove(run)

    assert [path.name for path in (small_disk / "runs").iterdir()] == [OTHER]
