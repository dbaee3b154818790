"""What a look at a run does while a command on another host changes it, by whose clock it seems to have died."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from launcher.errors import RequestError
from launcher.runs import directories, lock, moves, races, records
from launcher.service import finding, waiting
from tests.command import ROOT
from tests.runs.test_lock import elsewhere
from tests.runs.test_removal import fill
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.race import Race, Try
    from launcher.runs.records import Run

NAME, OTHER = "train-20250101-000000-abcd", "train-20250101-000000-abce"
BEHIND = 200.0
HOLDS = """
import sys
from pathlib import Path
from launcher.runs import lock, renewal
renewal._RENEW_S = 0.05
with lock.hold(Path(sys.argv[1]), "move"):
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def moving(tmp_path: Path) -> Run:
    """A run that has stopped, and is being moved."""
    run = make(tmp_path, NAME)
    there = make(run.path / races.TRIES, OTHER, created=1.0, result=None)
    moves.begin(run, there.id)
    return run


def test_a_look_from_another_host_does_not_undo_a_move_that_goes_on(moving: Run) -> None:
    elsewhere(moving.path, renewed=time.time() - BEHIND)

    finding.find(moving.root, NAME)

    assert moves.pending(moving) is not None


@pytest.fixture
def left(moving: Run) -> Run:
    """The same, but the host of its command has died, whose clock was ahead."""
    os.utime(elsewhere(moving.path, renewed=time.time() + BEHIND), (1.0, 1.0))
    return moving


def test_a_look_does_not_wait_for_a_host_that_may_have_died(left: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it sleeps for {seconds} s"))

    finding.find(left.root, NAME)

    assert moves.pending(left) is not None


def test_looks_of_several_commands_see_together_that_a_host_has_died(
    left: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**os.environ, "DISTLAUNCH_RUNS_DIR": str(left.root)}
    subprocess.run([sys.executable, "-m", "launcher", "status", NAME], cwd=ROOT, env=env, capture_output=True)
    assert moves.pending(left) is not None
    monkeypatch.setattr(lock, "_SILENT_S", 0.0)  # as if that had been a while ago

    finding.find(left.root, NAME)

    assert moves.pending(left) is None
    assert len(list(left.path.glob("lock-*"))) == 1


def test_what_was_seen_before_an_owner_renewed_its_lock_does_not_count(
    left: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding.find(left.root, NAME)
    os.utime(left.path / "lock-7", (2.0, 2.0))
    monkeypatch.setattr(lock, "_SILENT_S", 0.0)

    finding.find(left.root, NAME)

    assert moves.pending(left) is not None


def test_a_race_that_is_decided_on_another_host_is_not_recorded_as_failed(tmp_path: Path) -> None:
    run = race(tmp_path, OTHER)
    elsewhere(run.path, renewed=time.time() - BEHIND)

    _, state = waiting.look(directories.find(tmp_path, NAME))

    assert (state["state"], state["exit_code"]) == ("pending", None)


def test_a_race_whose_tries_are_about_to_be_made_has_not_failed(tmp_path: Path) -> None:
    race(tmp_path)

    _, state = waiting.look(directories.find(tmp_path, NAME))

    assert (state["state"], state["exit_code"]) == ("pending", None)


def test_an_owner_without_room_to_renew_its_lock_keeps_it(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(small_disk / "runs", NAME)
    holder = [sys.executable, "-c", HOLDS, str(run.path)]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout
        assert process.stdout.readline() == b"there\n"
        fill(small_disk)
        monkeypatch.setattr(lock, "_machine", lambda: "another host")
        monkeypatch.setattr(lock, "_SILENT_S", 5.0)
        with pytest.raises(RequestError, match="is being changed by `distlaunch move`"), lock.hold(run.path, "cancel"):
            pass


def race(directory: Path, *names: str) -> Run:
    """A run on several clusters, with these tries, of which nothing is sent yet."""
    tries: list[Try] = [
        {
            "run": name, "cluster": "lab", "tried_at": 1.0, "granted_at": None, "cancelled_at": None, "ended_at": None,
            "problem": None,
        }
        for name in names
    ]  # fmt: skip
    noted: Race = {"start": "first", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": tries}
    run = records.note_race(make(directory, NAME, result=None), noted)
    for name in names:
        make(run.path / races.TRIES, name, created=1.0, result=None)
    return run
