"""Notes that a worker leaves: why it starts again, that it has entered its debugger, or when its script called exit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

HEARD_BY = signal.SIGRTMAX - 1
"""The signal that announces a note to the fork server."""

AGAIN, DEBUGGER, EXIT = "again", "debugger", "exit"


def leave(scratch: str, kind: str, content: Any, server: int = 0) -> None:
    """Leave a note in a worker, and signal the fork server if it is for that."""
    with contextlib.suppress(OSError):
        with open(_path(scratch, kind, os.getpid()), "w", encoding="ascii") as file:
            json.dump(content, file)
        if server:
            os.kill(server, HEARD_BY)


def take(scratch: str, kind: str, pid: int) -> Any:
    """Take the note that a worker has left, in the fork server; None: there is none."""
    content = read(scratch, kind, pid)
    if content is not None:
        with contextlib.suppress(OSError):
            os.remove(_path(scratch, kind, pid))
    return content


def read(scratch: str, kind: str, pid: int) -> Any:
    """Read it, in any process, and leave it there."""
    with contextlib.suppress(OSError, ValueError), open(_path(scratch, kind, pid), encoding="ascii") as file:
        return json.load(file)
    return None


def _path(scratch: str, kind: str, pid: int) -> str:
    return os.path.join(scratch, f"{kind}-{pid}")
