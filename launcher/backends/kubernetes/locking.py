"""Locks that a process has until it lets go of them, or ends."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from launcher.agent.system import flock
from launcher.errors import RequestError
from launcher.runs import lock
from launcher.system import storage

if TYPE_CHECKING:
    from pathlib import Path


def locked(path: Path) -> ExitStack | None:
    """The lock, held until it is closed; None if another process or thread has it."""
    held = ExitStack()
    with storage.storage_errors(path.parent):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        held.callback(os.close, fd)
        try:
            free = flock.taken_if_known(fd)
        except OSError:
            held.close()
            raise
        if free is None:
            free = _held_by_file(held, path.with_suffix(".owner"))
    if free:
        return held
    held.close()
    return None


def _held_by_file(held: ExitStack, directory: Path) -> bool:
    """Lock by files in a directory, as a run's directory is locked; False if another process has it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    try:
        held.enter_context(lock.hold(directory, "logs"))
    except RequestError:
        return False
    return True
