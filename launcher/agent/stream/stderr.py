"""The node's stderr: a file on the run's disk, which may be full, or stall. A thread of the agent writes there, and nobody waits.

What the agent starts has a pipe in its place (`node/children.py`), which the agent reads.
"""

from __future__ import annotations

import contextlib
import os
import threading

_ROOM_BYTES = 16 * 1024 * 1024
"""So much waits to be written at most; what comes then is lost."""


class Stderr:
    """The agent's own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = b""
        self._idle = True
        threading.Thread(target=self._run, daemon=True, name="stderr").start()

    def write(self, data: bytes) -> None:
        """Have it written."""
        with self._changed:
            self._waiting += data[: _ROOM_BYTES - len(self._waiting)]
            self._changed.notify_all()

    def say(self, text: str) -> None:
        """A line, or several."""
        self.write(text.rstrip("\n").encode(errors="backslashreplace") + b"\n")

    def finish(self, limit_s: float) -> None:
        """Until all is written, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle and not self._waiting, limit_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                data, self._waiting, self._idle = self._waiting, b"", False
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(2, data) :]
