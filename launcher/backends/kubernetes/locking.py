"""Locks that a process has until it closes a descriptor, or ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.system import flock
from launcher.system import storage

if TYPE_CHECKING:
    from pathlib import Path


def locked(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process or thread has it."""
    with storage.storage_errors(path.parent):
        found = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if flock.taken(found):
                return found
        except OSError:
            os.close(found)
            raise
    os.close(found)
    return None
