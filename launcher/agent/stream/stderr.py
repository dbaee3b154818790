"""The node's stderr: a file on a disk that may be full or stall. A thread writes to it, so that the agent never waits.

Processes that the agent starts have a pipe instead (`node/children.py`), which the agent reads.
"""

from __future__ import annotations

import contextlib
import os
import threading

_ROOM_BYTES = 16 * 1024 * 1024
"""At most this much waits to be written; the rest is dropped."""


class Stderr:
    """The agent's own stderr."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = b""
        self._idle = True
        threading.Thread(target=self._run, daemon=True, name="stderr").start()

    def write(self, data: bytes) -> None:
        """Queue data for writing."""
        with self._changed:
            self._waiting += data[: _ROOM_BYTES - len(self._waiting)]
            self._changed.notify_all()

    def say(self, text: str) -> None:
        """Queue one or more lines."""
        self.write(text.rstrip("\n").encode(errors="backslashreplace") + b"\n")

    def finish(self, limit_s: float) -> None:
        """Wait until everything is written, for at most `limit_s`."""
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
