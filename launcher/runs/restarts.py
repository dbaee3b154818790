"""A run that is started again in its directory: what is recorded of that, and who may do so once it has ended.

followers/PROCESS/lock-N  a process that follows the run, and starts it again if a lost host may be replaced
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from launcher.agent.failures import may_come_back
from launcher.errors import LaunchError, StorageError
from launcher.runs import directories, lock, moves, records
from launcher.system import storage
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.runs.handle import Handle
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run

_FOLLOWERS = "followers"


@contextmanager
def following(run: Run, doing: str) -> Iterator[None]:
    """Be known, within the block, as a process that starts the run again if it `may_follow` its end."""
    directory = run.path / _FOLLOWERS / f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"
    with ExitStack() as held:
        held.callback(shutil.rmtree, directory, ignore_errors=True)
        with suppress(StorageError):  # a full disk: others may take the run for ended, a moment before it starts again
            with storage.storage_errors(directory):
                directory.mkdir(mode=0o700, parents=True)
            held.enter_context(lock.hold(directory, doing))
        yield


def may_follow(outcome: Outcome) -> bool:
    """Whether a process that follows the run may start it again after this end, if restarts are left."""
    return outcome.state == "failed" and may_come_back(outcome.cause)


def expected(run: Run, outcome: Outcome) -> str:
    """Who starts the run again after this end, or records the end; empty if it has ended for good.

    What the caller itself does about the run does not count.
    """
    if not outcome.final or outcome.state == "success" or run.result is not None:
        return ""
    if (attempt := latest(run)) > run.attempt:
        return f"started again, attempt {attempt}"
    if (owner := lock.other(run.whole_path)) is not None and owner.submits:
        return f"being started again by {owner}"
    if may_follow(outcome) and run.cancel_requested is None:
        for owner in _followers(run):
            return f"{owner} starts it again, or records its end"
    return ""


def latest(run: Run) -> int:
    """The number of the run's last attempt, as recorded now; that of `run` if it cannot be read."""
    with suppress(LaunchError):
        return max(run.attempt, directories.again(run).attempt)
    return run.attempt


def moving(run: Run) -> str:
    """Who moves the run, which may still have to end where it is; empty if no one does."""
    with suppress(StorageError):  # `rm` has just removed it
        if (owner := moves.other(run)) is not None:
            return f"being moved by {owner}"
    return ""


def _followers(run: Run) -> Iterator[lock.Owner]:
    try:
        found = sorted((run.path / _FOLLOWERS).iterdir())
    except OSError:
        return
    for directory in found:
        with suppress(StorageError):  # it has just ended
            if (owner := lock.other(directory)) is not None:
                yield owner


def start_again(run: Run, handle: Handle, attempt: int) -> Run:
    """Record that the run was started again, and discard its previous outcome."""
    started = records.record_handle(replace(run, attempt=attempt, ended=None), handle)
    with storage.storage_errors(run.path):
        for name in ("cancel.json", "result.json"):
            (run.path / name).unlink(missing_ok=True)
    return started


def before(handle: Handle, run: Run) -> Handle:
    """The handle of an incomplete submission, including the run's previous state for `as_before`."""
    return {**handle, "before": {"handle": run.handle, "attempt": run.attempt, "result": run.result}}


def as_before(run: Run) -> Run | None:
    """The run as it was before an incomplete restart; None if there was none."""
    former = run.known.get("before")
    return (
        None
        if former is None
        else replace(run, handle=former["handle"], attempt=former["attempt"], ended=former["result"])
    )


def give_back(run: Run) -> None:
    """Record the run that `as_before` has returned."""
    records.record_handle(run, run.known)
    if run.ended is not None:
        records.finish(run, run.ended)
    (run.path / "cancel.json").unlink(missing_ok=True)
