"""Remove runs that have ended: from their cluster, then from here."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.system import files, processes
from launcher.errors import LaunchError, RequestError, StorageError
from launcher.runs import directories, lock, races
from launcher.service import observe
from launcher.system import numbers, storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.results.run import RunState
    from launcher.runs.records import Run


_UNFINISHED_S = 86400.0
"""A run has its name within seconds."""


def check(run: Run, *, force: bool = False) -> None:
    """Raise `RequestError` unless the run has ended; with `force`, also accept one whose state cannot be known."""
    if run.whole_path != run.path:
        raise RequestError(f"{run.id} is a task of a job array", hint=f"distlaunch rm {run.id.partition('/')[0]}")
    if not run.damaged:
        state = observe.state_of(run)
        if state["exit_code"] is None and not (force and state["state"] == "unknown"):
            raise RequestError(f"{run.id} has not ended: {state['state']}", hint=f"distlaunch cancel {run.id}")
    elif not force:
        raise RequestError(f"{run.id} cannot be read as a run: {run.damaged}", hint=f"distlaunch rm --force {run.id}")


def remove(run: Run, *, force: bool = False) -> None:
    """Remove the run from its cluster and hosts, and its directory. Raises `RequestError` as `check` does.

    `force`: remove its directory even if the cluster or a host cannot be reached.
    """
    own = run.root / run.id
    if own.is_symlink():  # adopted: it is removed here only
        own.unlink()
        return
    with _hold(own), ExitStack() as held:
        run = directories.again(run)  # it may have been moved or started again since
        if run.path != own and run.path.is_dir():  # `requeue` and `cancel` take that of the try
            held.enter_context(_hold(run.path))
            run = directories.again(run)
        check(run, force=force)
        recorded = directories.recorded(run.root, run.id)
        tries = [each["run"] for each in (recorded.race or {"tries": []})["tries"]]
        parts = [recorded, *(directories.read(own / races.TRIES, name) for name in tries if name != run.id)]
        for each in parts:
            if each.handle is not None and not each.damaged:
                try:
                    observe.backend_of(each).remove(each.handle)
                except LaunchError:
                    if not force:
                        raise
        # Renamed first, so that it is never found half removed.
        gone = own.with_name(f".removed.{run.id}.{os.getpid()}")
        with storage.storage_errors(own):
            own.rename(gone)
    _remove(gone)


def _remove(gone: Path) -> None:
    try:
        files.remove_tree(str(gone))
    except OSError as error:
        raise StorageError(f"{error.filename} cannot be removed: {error.strerror or error}") from error


def sweep(directory: Path) -> None:
    """Remove what removals and launches that were cut off, or have failed, have left in the directory of all runs."""
    for left in (*directory.glob(".removed.*"), *filter(_is_unfinished, directory.glob(".*.*-*"))):
        pid = left.name.rpartition(".")[2].partition("-")[0]
        if not numbers.is_index(pid) or processes.start_ticks(int(pid)) is None:
            try:
                _remove(left)
            except StorageError as error:
                output.warn(error.message)


def _is_unfinished(path: Path) -> bool:
    """Whether a launch made this for a run that never got its name, and does not do so any more on any host."""
    run = path.name[1:].rpartition(".")[0]
    with suppress(OSError):
        return directories.is_id(run) and time.time() - path.stat().st_mtime > _UNFINISHED_S
    return False


@contextmanager
def _hold(own: Path) -> Iterator[None]:
    """Hold the run's lock. A full disk has no room for one: then only a live owner prevents the removal."""
    with ExitStack() as held:
        try:
            held.enter_context(lock.hold(own, "rm"))
        except StorageError as error:
            if not storage.is_full(error):
                raise
        yield


class Pruned(NamedTuple):
    """A run that is old enough to be removed."""

    run: Run
    state: RunState
    ended: float
    """Unix seconds."""


def prunable(directory: Path, older_than_s: float, *, keep_failed: bool) -> Iterator[Pruned]:
    """The runs that ended that long ago, whether or not anyone has looked; with `keep_failed`, those that succeeded."""
    now = time.time()
    for name in directories.ids(directory):
        run = directories.read(directory, name)
        if run.damaged or now - run.created <= older_than_s:
            continue
        state = observe.state_of(run)
        if state["exit_code"] is None or (keep_failed and state["exit_code"]):
            continue
        ended = _ended(run, state)
        if now - ended > older_than_s:
            yield Pruned(run, state, ended)


def _ended(run: Run, state: RunState) -> float:
    """The last sign of life of its nodes, of an array of its tasks'; without one, when its end was recorded."""
    if run.tasks:
        return max(_ended(task, observe.state_of(task)) for task in map(run.task, run.tasks))
    if seen := [node["last_seen"] for node in state["nodes"] if node["last_seen"]]:
        return max(seen)
    with suppress(OSError):
        return run.result_path.stat().st_mtime
    return run.created
