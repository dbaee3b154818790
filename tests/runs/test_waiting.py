"""`wait`, while something else changes the run."""

from __future__ import annotations

import errno
import shutil
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from launcher.agent.system import trust as rule
from launcher.console import live_line
from launcher.errors import RequestError, RunNotFoundError, StorageError
from launcher.runs import directories, lock, races, records
from launcher.runs.liveness import Liveness
from launcher.service import observe, waiting
from launcher.system import input_file
from launcher.system.dataclass import replace
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.results.race import Race, Try
    from launcher.runs.handle import Handle
    from launcher.runs.liveness import NodeState
    from launcher.runs.records import Run

NAME = "train-20250101-000000-abcd"
OTHER = "train-20250101-000000-abce"
ENDED = {"state": "success", "exit_code": 0, "cause": None, "nodes": []}
FAILED = {**ENDED, "state": "failed", "exit_code": 1}


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[NodeState]:
    """What the cluster says of the nodes of all runs."""
    states: list[NodeState] = ["running"]

    class Cluster:
        name = "local"

        def liveness(self, _handle: Handle) -> Liveness:
            return Liveness(nodes=tuple(states))

        def recover(self, _handle: Handle) -> None:
            """Nothing was sent."""

        def undo(self, _handle: Handle) -> None:
            """Nothing is there."""

    monkeypatch.setattr(observe, "backend_of", lambda _run: Cluster())
    return states


@pytest.fixture
def after_polls(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens after the first poll, after the second, and so on."""
    steps: list[Callable[[], object]] = []
    monkeypatch.setattr(live_line, "show", lambda _text: steps.pop(0)() if steps else None)
    return steps


def test_a_run_that_is_being_submitted_is_waited_for(tmp_path: Path, after_polls: list[Callable[[], object]]) -> None:
    run = make(tmp_path, NAME, created=time.time() - 1000, result=None)
    with ExitStack() as held:
        held.enter_context(lock.hold(run.path, "local", submits=True))

        def submitted() -> None:
            records.record_handle(run, {"run_dir": str(run.path), "job_id": "7"})
            held.close()

        after_polls += [submitted, lambda: None, lambda: records.finish(run, ENDED)]
        ((ended, state),) = waiting.wait([run], timeout="60s")

    assert (state["state"], ended.job_id) == ("success", "7")


def test_a_run_that_no_launcher_decides_ends_with_its_last_try(
    tmp_path: Path, after_polls: list[Callable[[], object]]
) -> None:
    tries = [_try(OTHER)]
    race: Race = {"start": "first", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": tries}
    run = records.note_race(make(tmp_path, NAME, result=None), race)
    tried = make(run.path / races.TRIES, OTHER, result=None)
    records.record_handle(tried, {"run_dir": str(tried.path)})
    after_polls += [lambda: None, lambda: records.finish(tried, FAILED)]

    ((_, state),) = waiting.wait([directories.find(tmp_path, NAME)], timeout="20s")

    assert state["state"] == "failed"
    assert state["cause"]
    assert "no cluster is left" in state["cause"]["message"]


def test_a_run_whose_other_tries_were_never_sent_ends_with_its_last_one(
    tmp_path: Path, after_polls: list[Callable[[], object]]
) -> None:
    """Its launcher was killed before it created one, before it sent the next, and while it sent a third."""
    last, noted, made, begun = (f"{NAME[:-1]}{letter}" for letter in "efgh")
    tries = [_try(name) for name in (last, noted, made, begun)]
    race: Race = {"start": "first", "limit": 4, "claim": None, "wait_s": 300.0, "asked": [], "tries": tries}
    run = records.note_race(make(tmp_path, NAME, created=1.0, result=None), race)
    tried = make(run.path / races.TRIES, last, result=None)
    records.record_handle(tried, {"run_dir": str(tried.path)})
    make(run.path / races.TRIES, made, created=1.0, result=None)
    sent = make(run.path / races.TRIES, begun, created=1.0, result=None)
    records.record_handle(sent, {"run_dir": str(sent.path), "submitting": True})
    after_polls += [lambda: None, lambda: records.finish(tried, FAILED)]

    ((ended, state),) = waiting.wait([directories.find(tmp_path, NAME)], timeout="20s")

    assert state["state"] == "failed"
    assert ended.race
    problems = {each["run"]: each["problem"] for each in ended.race["tries"]}
    assert problems[noted] == "it has no run.json"
    assert problems[made] == problems[begun] == "its launcher ended before the run was submitted"


def test_what_may_still_start_of_a_run_that_no_launcher_decides_is_cancelled_with_its_last_try(tmp_path: Path) -> None:
    race: Race = {"start": "first", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": [_try(OTHER)]}
    run = records.note_race(make(tmp_path, NAME, created=1.0, result=None), race)
    begun = make(run.path / races.TRIES, OTHER, created=1.0, result=None)
    records.record_handle(begun, {"run_dir": str(begun.path), "submitting": "sbatch does not answer"})

    ((ended, state),) = waiting.wait([directories.find(tmp_path, NAME)], timeout="20s")

    assert state["cause"]
    assert "something may still start: sbatch does not answer" in state["cause"]["message"]
    assert begun.cancel_requested is not None
    assert ended.race
    assert ended.race["tries"][0]["cancelled_at"] is not None


def test_a_run_that_is_removed_is_one_that_does_not_exist(
    tmp_path: Path, after_polls: list[Callable[[], object]], nodes: list[NodeState]
) -> None:
    run = records.record_handle(make(tmp_path, NAME, result=None), {"run_dir": str(tmp_path / NAME)})

    def removed() -> None:
        shutil.rmtree(run.path)
        nodes[:] = ["ended"]

    after_polls.append(removed)
    with pytest.raises(RunNotFoundError):
        waiting.wait([run], timeout="60s")


def test_a_job_array_is_waited_for_while_the_cluster_is_silent(
    tmp_path: Path, after_polls: list[Callable[[], object]], nodes: list[NodeState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_LOST_S", 0.0)
    run = array_of_two(tmp_path)
    nodes[:] = ["unknown"]

    after_polls += [lambda: None, lambda: [records.finish(run.task(index), ENDED) for index in run.tasks]]
    ((_, state),) = waiting.wait([run], timeout="60s")

    assert state["state"] == "success"


def test_a_run_whose_files_are_out_of_reach_is_waited_for_and_one_that_was_never_sent_is_not(
    tmp_path: Path, after_polls: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, NAME, result=None)
    records.record_handle(run, {"run_dir": str(run.path)})
    run.stream_path(0).mkdir(parents=True)  # reading it is an error
    stale = rule.Problem(f"{run.path}: Stale file handle", "")
    problems = [None, stale, stale]
    monkeypatch.setattr(waiting, "_LOST_S", 0.0)
    monkeypatch.setattr(rule, "problem", lambda *_args, **_more: problems.pop(0) if problems else None)
    after_polls += [lambda: None, lambda: None, lambda: records.finish(run, ENDED)]

    ((_, state),) = waiting.wait([run], timeout="60s")

    assert state["state"] == "success"
    assert not problems
    monkeypatch.setattr(waiting, "_LOST_S", 0.5)
    never = make(tmp_path, OTHER, created=1.0, result=None)
    with pytest.raises(RequestError, match="will not end"):
        waiting.wait([never], timeout="60s")


def test_a_run_whose_files_stay_out_of_reach_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, NAME, result=None)
    records.record_handle(run, {"run_dir": str(run.path)})
    monkeypatch.setattr(rule, "problem", lambda *_args, **_more: rule.Problem(f"{run.path}: Stale file handle", ""))
    monkeypatch.setattr(waiting, "_AWAY_S", 0.0)

    with pytest.raises(StorageError, match=r"is out of reach: .*Stale file handle"):
        waiting.wait([run])


def test_a_task_is_waited_for_while_its_run_cannot_be_read(
    tmp_path: Path, after_polls: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    array = array_of_two(runs)
    task = array.task(1)
    errors: list[int] = []

    def open_fd(path: Path, really: Callable[[Path], int] = input_file.open_fd) -> int:
        if path.name == "run.json" and errors:
            raise OSError(errors.pop(), "Input/output error", str(path))
        return really(path)

    monkeypatch.setattr(input_file, "open_fd", open_fd)
    monkeypatch.setattr(waiting, "_LOST_S", 0.0)
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        after_polls.pop(0)()

    monkeypatch.setattr(live_line, "show", show)
    after_polls += [
        lambda: errors.append(errno.EIO),
        lambda: runs.rename(tmp_path / "unmounted"),
        lambda: (tmp_path / "unmounted").rename(runs),
        lambda: records.finish(task, ENDED),
    ]

    ((_, state),) = waiting.wait([task], timeout="60s")

    assert state["state"] == "success"
    assert [text.partition("to end: ")[2].partition(str(tmp_path))[0] for text in shown] == [
        "starting",
        f"unknown: out of reach: {NAME}: run.json cannot be read",
        f"unknown: out of reach: no run {NAME!r}: there are no runs in '",
        "starting",
    ]


def test_a_run_whose_record_is_not_json_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_LOST_S", 0.0)
    run = make(tmp_path, NAME, result=None)
    (run.path / "run.json").write_bytes(b"")

    with pytest.raises(RequestError, match=r"will not end: unknown: run\.json is not JSON"):
        waiting.wait([directories.find(tmp_path, NAME)], timeout="60s")


def test_a_run_whose_launcher_ended_before_it_sent_anything_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_LOST_S", 0.0)
    run = make(tmp_path, NAME, created=1.0, result=None)
    records.record_handle(run, {"run_dir": str(run.path), "submitting": True})

    with pytest.raises(RequestError, match="will not end: unknown: its launcher ended before the run was submitted"):
        waiting.wait([directories.find(tmp_path, NAME)], timeout="60s")


def array_of_two(directory: Path) -> Run:
    """A job array that was submitted."""
    run = make(directory, NAME, result=None)
    run = records.record_handle(replace(run, plan={**run.plan, "tasks": [0, 1]}), {"run_dir": str(run.path)})
    for index in run.tasks:
        run.task(index).path.mkdir(parents=True)
    return run


def _try(run: str) -> Try:
    """One that has not ended, as far as is recorded."""
    return {
        "run": run, "cluster": run[-1], "tried_at": 1.0, "granted_at": None, "cancelled_at": None, "ended_at": None,
        "problem": None,
    }  # fmt: skip
