"""cancel.json: the last request to cancel a run, which agents that start later find, too."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.errors import LaunchError
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.runs.records import Run


@contextmanager
def cancelling(run: Run, *, force: bool) -> Iterator[None]:
    """Record the request to cancel before the block asks the backend; take it back if the backend refuses."""
    paths = _notes(run)
    before = [storage.read_json(path) for path in paths]
    note(run, force=force)
    try:
        yield
    except LaunchError as error:
        for path, request in zip(paths, before, strict=True):
            if request is not None:
                storage.write_whole(path, storage.encode_json(request))
            elif not error.in_part:
                path.unlink(missing_ok=True)
        raise


def note(run: Run, *, force: bool) -> None:
    """Record the request to cancel. Agents that start later exit at once, if they see the run's directory."""
    for number, path in enumerate(_notes(run)):
        request = storage.encode_json({"time": round(time.time(), 3), "force": force})
        storage.write_whole(path, request, sync=not number)  # an array may have thousands of tasks


def _notes(run: Run) -> list[Path]:
    return [each.path / "cancel.json" for each in (run, *map(run.task, run.tasks))]
