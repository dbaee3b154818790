"""Locks that a process has until it closes a descriptor, or ends."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from launcher.system import storage

if TYPE_CHECKING:
    from pathlib import Path


def locked(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process or thread has it."""
    with storage.storage_errors(path.parent):
        found = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found
