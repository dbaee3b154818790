"""A pipe by which signals, and other threads, wake a process that waits for descriptors."""

from __future__ import annotations

import contextlib
import os
import signal


class Wakeup:
    """From its creation on, every signal with a Python handler puts its number there; `take` reads them."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """For selectors."""
        return self._reader

    def wake(self) -> None:
        """Wake the process without a signal: from another thread."""
        with contextlib.suppress(BlockingIOError):  # it is full: the process wakes anyway
            os.write(self._writer, b"\0")

    def take(self) -> bytes:
        """The numbers of the signals that have come; 0: `wake` was called."""
        try:
            return os.read(self._reader, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """In a forked child, for which these signals are not meant."""
        os.close(self._reader)
        os.close(self._writer)
