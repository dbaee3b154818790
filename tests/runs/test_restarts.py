"""A run that another process starts again, or moves, once it has ended."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from launcher.agent.protocol import encode_event
from launcher.errors import BackendUnavailableError, StorageError
from launcher.runs import cancel_notes, directories, records, restarts, status
from launcher.runs.liveness import Liveness
from launcher.service import again, cancel, observe
from tests.command import ROOT
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from launcher.results.run import RunState
    from launcher.runs.handle import Handle
    from launcher.runs.records import Run

NAME = "train-20250101-000000-abcd"
LOST = {"class": "node", "message": "n2 does not answer", "time": 1.0}
FAILED = {"state": "failed", "exit_code": 1, "cause": None, "nodes": []}


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose only node has reported that a host was lost."""

    class Cluster:
        name = "local"

        def liveness(self, _handle: Handle) -> Liveness:
            return Liveness(nodes=("ended",))

    monkeypatch.setattr(observe, "backend_of", lambda _run: Cluster())
    return lost(records.record_handle(make(tmp_path, NAME, result=None), {"run_dir": str(tmp_path / NAME)}))


def lost(run: Run, cause: dict[str, object] = LOST) -> Run:
    stream = run.stream_path(0)
    stream.parent.mkdir(parents=True, exist_ok=True)
    begun = encode_event("agent_started", 0, host="h", attempt=run.attempt)
    stream.write_bytes(begun + encode_event("done", 0, result="failed", cause=cause))
    return run


OTHER = """
import sys, time
from pathlib import Path
from launcher.runs import directories, lock, moves, restarts
run = directories.read(Path(sys.argv[1]), sys.argv[2])
with {block}:
    print("there", flush=True)
    {meanwhile}
"""


@contextmanager
def elsewhere(run: Run, block: str, meanwhile: str = "sys.stdin.read()") -> Iterator[None]:
    """Another process that is in that block meanwhile."""
    code = OTHER.format(block=block, meanwhile=meanwhile)
    command = [sys.executable, "-c", code, str(run.path.parent), run.id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout
        assert process.stdout.readline() == b"there\n"
        yield


def test_a_run_whose_follower_may_start_it_again_has_not_ended(ended: Run) -> None:
    with elsewhere(ended, "restarts.following(run, 'ansible')"):
        state = observe.state_of(ended)
        assert (state["state"], state["exit_code"]) == ("pending", None)
        assert "`distlaunch ansible`, process" in state["detail"]
        assert ended.result is None, "the follower decides what is recorded"
    assert not list((ended.path / "followers").iterdir())

    assert observe.state_of(ended)["state"] == "failed"


def test_a_run_that_is_being_started_again_has_not_ended(ended: Run) -> None:
    with elsewhere(ended, "lock.hold(run.path, 'ansible', submits=True)"):
        assert observe.state_of(ended)["detail"].startswith("being started again by `distlaunch ansible`")
    assert observe.state_of(ended)["state"] == "failed"


@pytest.mark.parametrize("why", ["cancelled", "a script's own failure", "recorded", "by this process"])
def test_who_follows_does_not_matter_after_an_end_for_good(ended: Run, why: str) -> None:
    if why == "cancelled":
        cancel_notes.note(ended, force=False)
    elif why == "recorded":
        records.finish(ended, FAILED)
    elif why == "a script's own failure":
        lost(ended, {**LOST, "class": "user_code"})
    with restarts.following(ended, "ansible"):
        if why == "by this process":
            assert observe.state_of(ended)["exit_code"] == 1
            return
        with elsewhere(ended, "restarts.following(run, 'ansible')"):
            assert observe.state_of(ended)["exit_code"] is not None


def test_a_follower_that_was_killed_does_not_count(ended: Run) -> None:
    with elsewhere(ended, "restarts.following(run, 'ansible')"):
        (directory,) = (ended.path / "followers").iterdir()
        kept = {path.name: path.read_bytes() for path in directory.iterdir()}
    directory.mkdir()
    for name, content in kept.items():
        (directory / name).write_bytes(content)

    assert observe.state_of(ended)["state"] == "failed"


def test_a_late_observer_does_not_end_the_next_attempt(ended: Run) -> None:
    again = restarts.start_again(ended, ended.known, attempt=1)

    assert records.finish(ended, {**FAILED, "attempt": 0}), "by what it has read before"

    assert directories.read(ended.path.parent, ended.id).result is None
    assert records.finish(again, {**FAILED, "state": "success", "exit_code": 0})
    known = status.current(directories.read(ended.path.parent, ended.id))
    assert known is not None
    assert (known["state"], known["attempt"]) == ("success", 1)
    assert not records.finish(again, FAILED), "the end of an attempt is recorded once"


def test_the_former_end_is_kept_until_the_next_attempt_is_recorded(ended: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run: Run, handle: Handle) -> Run:
        raise StorageError("no space")

    records.finish(ended, FAILED)
    monkeypatch.setattr(records, "record_handle", full)

    with pytest.raises(StorageError):
        restarts.start_again(ended, ended.known, attempt=1)
    assert ended.result is not None


def test_a_run_that_is_moved_is_pending_and_its_move_can_be_cancelled(ended: Run) -> None:
    records.finish(ended, {**FAILED, "state": "cancelled", "exit_code": 130})
    (ended.path / "tries").mkdir()
    block = "lock.hold(run.path / 'tries', 'move'), moves.cancellable(run)"

    with elsewhere(ended, block, "while not moves.cancelled(run): time.sleep(0.01)"):
        state = observe.state_of(ended)
        assert (state["state"], state["exit_code"]) == ("pending", None)
        assert state["detail"].startswith("being moved by `distlaunch move`, process")
        assert cancel.cancel(ended)["state"] == "cancelled", "once the process has seen the request, and ended"
    assert not (ended.path / "tries/cancel.json").exists()


def test_a_run_that_still_runs_while_it_is_moved_is_ended_at_once(ended: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Cluster:
        name = "local"

        def liveness(self, _handle: Handle) -> Liveness:
            return Liveness(nodes=("ended" if asked else "running",))

        def cancel(self, _handle: Handle, *, force: bool) -> None:
            asked.append(force)

    monkeypatch.setattr(observe, "backend_of", lambda _run: Cluster())
    ended.stream_path(0).unlink()
    (ended.path / "tries").mkdir()

    with elsewhere(ended, "lock.hold(run.path / 'tries', 'move'), moves.cancellable(run)"):
        state = cancel.cancel(ended, force=True)
        assert ended.result is not None
        assert observe.state_of(ended)["state"] == "pending", "until the move has seen it"

    assert asked == [True]
    assert (state["state"], observe.state_of(ended)["state"]) == ("cancelled", "cancelled")


def test_a_restart_that_fails_leaves_the_end_to_those_who_follow(ended: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster:
        can_requeue = True
        name = "ansible"

        def requeue(self, handle: Handle, attempt: int, record: Callable[[Handle], None]) -> Handle:
            record(handle)
            raise BackendUnavailableError("no host answers")

        def undo(self, _handle: Handle) -> None:
            pass

    backend: Any = Cluster()
    monkeypatch.setattr(observe, "backend_of", lambda _run: backend)
    with pytest.raises(BackendUnavailableError):
        again.start(ended, backend, 1, doing="ansible", ended=cast("RunState", {**FAILED, "cause": LOST}))

    now = directories.read(ended.path.parent, ended.id)
    assert (now.attempt, now.submitted, now.result) == (0, True, None)
