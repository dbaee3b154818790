"""A look at a run does what its launcher has left, and is in no other command's way while it asks clusters."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from launcher.runs import directories, lock, moves, races, records
from launcher.runs.liveness import Liveness
from launcher.service import finding, observe, removal
from tests.runs.test_other_clocks import race
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.results.race import Race
    from launcher.runs.handle import Handle
    from launcher.runs.records import Run

NAME, LAB, JUNO = (f"train-20250101-000000-abc{letter}" for letter in "def")
CANCELLED = {"state": "cancelled", "exit_code": 130, "cause": None, "nodes": []}


class Cluster:
    """A backend whose runs run until they are cancelled."""

    name = "local"

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while a run is being cancelled."""

        self.cancelled = 0

    def liveness(self, _handle: Handle) -> Liveness:
        return Liveness(nodes=("running",))

    def cancel(self, handle: Handle, **_how: bool) -> None:
        self.cancelled += 1
        self.meanwhile()
        there = directories.root(handle["run_dir"], {})
        records.finish(directories.recorded(there.parent, there.name), CANCELLED)

    def remove(self, _handle: Handle) -> None:
        """Nothing is there."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The backend of all runs."""
    found = Cluster()
    monkeypatch.setattr(observe, "backend_of", lambda _run: found)
    return found


@pytest.fixture
def won(tmp_path: Path) -> Run:
    """A run that has begun on lab, and whose launcher has not told juno."""
    run = race(tmp_path, LAB, JUNO)
    for name in (LAB, JUNO):
        there = directories.read(run.path / races.TRIES, name)
        records.record_handle(there, {"run_dir": str(there.path)})
    assert run.race
    granted: Any = [{**each, "granted_at": 2.0} if each["run"] == LAB else each for each in run.race["tries"]]
    run = records.note_race(run, {**run.race, "tries": granted})
    races.decide(run, LAB, "lab")
    return run


@pytest.fixture
def moving(tmp_path: Path) -> Run:
    """A run that was about to be moved when the command that moved it was killed."""
    run = make(tmp_path, NAME)
    there = make(run.path / races.TRIES, LAB, created=1.0, result=None)
    records.record_handle(there, {"run_dir": str(there.path)})
    moves.begin(run, there.id)
    return run


@pytest.mark.parametrize("kind", ["won", "moving"])
def test_another_command_can_change_the_run_while_a_cluster_is_asked(
    kind: str, cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(kind)
    owners: list[lock.Owner | None] = []

    def another() -> None:
        with lock.hold(run.path, "move"):
            owners.append(lock.owner(run.path))

    cluster.meanwhile = another
    finding.find(run.root, NAME)

    assert [owner.doing for owner in owners if owner] == ["move"]
    assert moves.pending(run) is None
    noted = directories.recorded(run.root, NAME).race
    if kind == "won":
        assert noted
        assert {each["run"]: each["ended_at"] is not None for each in noted["tries"]} == {LAB: False, JUNO: True}


def test_what_another_command_has_changed_meanwhile_stays(won: Run, cluster: Cluster) -> None:
    assert won.race
    moved: Race = {**won.race, "start": "move"}

    def another() -> None:
        with lock.hold(won.path, "move"):
            records.note_race(won, moved)

    cluster.meanwhile = another
    finding.find(won.root, NAME)

    assert directories.recorded(won.root, NAME).race == moved


def test_a_command_waits_for_a_look(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, NAME)
    looks, over = threading.Event(), threading.Event()

    def look() -> None:
        with lock.at_once(run.path) as ours:
            assert ours
            looks.set()
            over.wait(60)

    looking = threading.Thread(target=look)
    looking.start()
    assert looks.wait(60)

    def sleep(seconds: float, really: Callable[[float], None] = time.sleep) -> None:
        over.set()
        really(seconds)

    monkeypatch.setattr(time, "sleep", sleep)

    removal.remove(run)

    looking.join()
    assert not run.path.exists()
    assert not cluster.cancelled


def test_a_lock_that_cannot_be_read_for_a_moment_is_no_sign_of_silence(tmp_path: Path) -> None:
    lock_file = tmp_path / "lock-1"
    lock_file.symlink_to(tmp_path / "out of reach")

    with lock.at_once(tmp_path) as ours:
        assert not ours
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock-1"]
