"""A run that is being moved to another cluster: RUN/move.json names the try there until it may start, or is undone.

Whatever ends the command that moves it, the next one finds where the run is: at the try that claim.json names.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from launcher.runs import directories, lock, races, records
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.results.race import Race
    from launcher.runs.records import Run

_NOTE = "move.json"


def begin(recorded: Run, name: str) -> None:
    """Note the try before it is submitted. `recorded`: the run as its own directory has it."""
    noted = {"run": name, "before": recorded.race}
    storage.write_whole(recorded.path / _NOTE, storage.encode_json(noted), mode=0o600)


def pending(run: Run) -> Run | None:
    """The try to which the run is being moved; None if there is none."""
    path = run.root / run.id
    name = str((storage.read_json(path / _NOTE) or {}).get("run", ""))
    return directories.read(path / races.TRIES, name) if directories.is_id(name) else None


def other(run: Run) -> lock.Owner | None:
    """Who moves the run, other than the caller; None if no one does."""
    tries = run.root / run.id / races.TRIES
    return lock.other(tries) if tries.is_dir() else None


def cancel(run: Run) -> None:
    """Ask the process that moves the run to end it instead."""
    storage.write_whole(_request(run), b"{}\n", mode=0o600)


def cancelled(run: Run) -> bool:
    """Whether another process has asked for the end of the run that is being moved."""
    return _request(run).exists()


@contextmanager
def cancellable(run: Run) -> Iterator[None]:
    """Within the block, the run is moved; what was asked of a former move does not count."""
    _request(run).unlink(missing_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            _request(run).unlink(missing_ok=True)


def _request(run: Run) -> Path:
    return run.root / run.id / races.TRIES / "cancel.json"


def formers(run: Run) -> Iterator[Run]:
    """The run where it was before, the oldest first."""
    own = run.root / run.id
    for each in (run.won or {"tries": []})["tries"]:
        if each["granted_at"] is not None and each["cancelled_at"] is not None:
            here = own.parent if each["run"] == run.id else own / races.TRIES
            yield directories.recorded(here, each["run"])


def hosts(run: Run) -> list[str]:
    """The hosts of the run's nodes, and of those that it had only where it was before."""
    found = list(run.hosts)
    for former in formers(run):
        found += former.hosts[len(found) :]
    return found


def undo(recorded: Run) -> None:
    """The run stays where it was."""
    noted = storage.read_json(recorded.path / _NOTE) or {}
    before: Race | None = noted.get("before")
    if recorded.race != before:
        records.note_race(recorded, before)
    end(recorded)


def end(recorded: Run) -> None:
    """The run has moved, or stays."""
    with storage.storage_errors(recorded.path):
        (recorded.path / _NOTE).unlink(missing_ok=True)
