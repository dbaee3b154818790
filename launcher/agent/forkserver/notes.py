"""Notes that a worker leaves for the fork server: why it starts again, or that it has come into its debugger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

HEARD_BY = signal.SIGRTMAX - 1
"""What tells the fork server of a note."""

AGAIN, DEBUGGER = "again", "debugger"


def leave(scratch: str, kind: str, content: Any, server: int) -> None:
    """In a worker: the note, and a signal to that fork server."""
    with contextlib.suppress(OSError):
        with open(_path(scratch, kind, os.getpid()), "w", encoding="ascii") as file:
            json.dump(content, file)
        os.kill(server, HEARD_BY)


def take(scratch: str, kind: str, pid: int) -> Any:
    """In the fork server: what that worker has left, once; None: nothing."""
    with contextlib.suppress(OSError, ValueError), open(_path(scratch, kind, pid), encoding="ascii") as file:
        content = json.load(file)
        os.remove(file.name)
        return content
    return None


def _path(scratch: str, kind: str, pid: int) -> str:
    return os.path.join(scratch, f"{kind}-{pid}")
