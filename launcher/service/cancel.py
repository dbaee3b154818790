"""Cancel a run that another process may be following, submitting or requeueing."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import Failure
from launcher.errors import LaunchError, StorageError
from launcher.results import run as results
from launcher.runs import cancel_notes, directories, lock, moves, races, records, restarts, status
from launcher.service import observe, undo
from launcher.system.question import Question

if TYPE_CHECKING:
    from launcher.results.race import Race
    from launcher.results.run import RunState
    from launcher.runs.records import Run

_EXTRA_S = 10.0
_EACH_S = 0.1
"""Of each node: by default, Kubernetes' controllers make 20 requests a second, and a pod's end takes two of them."""

_LOCK_S = 60.0
"""A submitting process sees the request within a second and undoes the submission; unresponsive hosts take longer."""

_POLL_S = (0.1, 3.0)


def cancel(found: Run, *, force: bool = False, wait: bool = True) -> RunState:
    """Cancel the run unless it has ended, and return its state: the final one if `wait`.

    Raises `CommandError` if the run does not end in time.
    """
    if restarts.moving(observe.whole(found)):
        with suppress(StorageError):  # a full disk is a reason to cancel
            moves.cancel(found)
        if found.result is not None:  # else it still runs, and is ended here, too
            with lock.hold(found.root / found.id / races.TRIES, "cancel", wait_s=_LOCK_S):
                found = directories.again(found)
    state = status.current(found)
    if state is not None and state.get("exit_code") is not None:
        there = moves.pending(found)
        return state if there is None or there.damaged else cancel(there, force=force, wait=wait)
    try:
        with cancel_notes.cancelling(found, force=force), lock.hold(found.whole_path, "cancel", wait_s=_LOCK_S):
            found = _end(found, force=force)
    except StorageError as error:
        if found.handle is None:
            raise
        output.warn(f"{error.message}; cancelling without recording it")  # a full disk is a reason to cancel
        observe.backend_of(found).cancel(found.handle, force=force)
    return _wait(found, force=force) if wait else status.current(found) or results.nothing("stopping")


def _end(found: Run, *, force: bool) -> Run:
    """Have the backend end the run, as re-read under the lock. A run that was never sent is recorded as cancelled."""
    found = observe.whole(directories.again(found))
    if (known := status.current(found)) is not None and known["exit_code"] is not None:
        return found
    if found.race is not None:
        _end_tries(found, found.race, force=force)
        records.finish(found, undo.unsubmitted(Failure.CANCELLED))
        return found
    sent = observe.sent(found)
    if sent.handle is None or sent.attempt < found.attempt:  # nothing was started, but objects for it may exist
        if found.handle is not None:
            observe.backend_of(found).undo(observe.begun(found.handle))
        if former := restarts.as_before(found):
            restarts.give_back(former)
            return former
        records.finish(found, undo.unsubmitted(Failure.CANCELLED))
        return found
    if not found.submitted and sent.whole_path == sent.path:
        sent = records.record_handle(sent, sent.handle)
    with cancel_notes.cancelling(sent, force=force):  # a requeue has removed the first request
        observe.backend_of(sent).cancel(sent.known, force=force)
    return sent


def _end_tries(run: Run, race: Race, *, force: bool) -> None:
    """Cancel all tries at once. Once all clusters have answered, raises the error of the first that did not do it."""
    names = [each["run"] for each in race["tries"] if each["ended_at"] is None]
    tries = filter(races.was_made, (directories.read(run.path / races.TRIES, name) for name in names))
    asked = [(each, Question(partial(cancel, each, force=force), f"cancel {each.cluster}")) for each in tries]
    refused: list[LaunchError] = []
    for each, question in asked:
        try:
            question.answer()
        except LaunchError as error:
            refused.append(type(error)(f"{each.cluster}: {error.message}", hint=error.hint, in_part=True))
    for other in refused[1:]:
        output.warn(other.message)
    if refused:
        raise refused[0]


def _wait(run: Run, *, force: bool) -> RunState:
    """Wait for the final state. Raises `CommandError` if the run does not end in time."""
    nodes = len(run.hosts) * max(1, len(run.tasks))
    limit = time.monotonic() + _EXTRA_S + _EACH_S * nodes + (0.0 if force else run.grace_s)
    pause = _POLL_S[0]
    while time.monotonic() < limit:
        if (result := run.result) is not None:  # also that of a run which another process is about to move
            return status.ended(result)
        state = observe.state_of(run)
        if state.get("exit_code") is not None:
            return state
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_S[1])
    raise observe.not_ended(run, forced=force)
