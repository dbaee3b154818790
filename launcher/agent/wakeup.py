"""A pipe through which signals and other threads wake a process that waits for descriptors."""

from __future__ import annotations

import contextlib
import os
import signal


class Wakeup:
    """From its creation on, every signal with a Python handler writes its number there; `take` reads them."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """For selectors."""
        return self._reader

    def wake(self) -> None:
        """Wake the process from another thread, without a signal."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the process anyway
            os.write(self._writer, b"\0")

    def take(self) -> bytes:
        """The numbers of the received signals; 0 stands for a call of `wake`."""
        try:
            return os.read(self._reader, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close the pipe in a forked child, which must not receive these signals."""
        os.close(self._reader)
        os.close(self._writer)
