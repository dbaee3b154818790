"""Notes that a worker leaves for the fork server: why it starts again, or that it has entered its debugger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

HEARD_BY = signal.SIGRTMAX - 1
"""The signal that announces a note to the fork server."""

AGAIN, DEBUGGER = "again", "debugger"


def leave(scratch: str, kind: str, content: Any, server: int) -> None:
    """Leave a note in a worker, and signal the fork server."""
    with contextlib.suppress(OSError):
        with open(_path(scratch, kind, os.getpid()), "w", encoding="ascii") as file:
            json.dump(content, file)
        os.kill(server, HEARD_BY)


def take(scratch: str, kind: str, pid: int) -> Any:
    """Take the note that a worker has left, in the fork server; None: there is none."""
    with contextlib.suppress(OSError, ValueError), open(_path(scratch, kind, pid), encoding="ascii") as file:
        content = json.load(file)
        os.remove(file.name)
        return content
    return None


def _path(scratch: str, kind: str, pid: int) -> str:
    return os.path.join(scratch, f"{kind}-{pid}")
