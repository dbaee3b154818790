"""Writes workers' lines to our stdout and stderr. While a disk is full, lines are dropped and counted."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

from launcher.system import writing
from launcher.torchrun.logs import STDERR, STDOUT

if TYPE_CHECKING:
    from collections.abc import Callable

_AGAIN_S = 1.0


class Printing:
    """Our stdout and stderr."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` prints a message to the user."""
        self._streams = {STDOUT: _Stream(STDOUT, "stdout", say), STDERR: _Stream(STDERR, "stderr", say)}

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Write this, or count what is lost of it."""
        self._streams[fd].write(bytes(data))

    def report(self) -> bool:
        """Print how many lines were lost. Returns whether stdout is whole."""
        for stream in self._streams.values():
            stream.report()
        return not self._streams[STDOUT].reason


class _Stream:
    """One stream, which a reader may leave, and whose disk may be full for a while."""

    def __init__(self, fd: int, name: str, say: Callable[[str], None]) -> None:
        self.reason = ""
        """Why lines were lost, if any were."""

        self._fd, self._name, self._say = fd, name, say
        self._left = False
        """Whether its reader has gone: what was for that one alone is not lost."""

        self._lines, self._again_at = 0, 0.0
        self._gap = self._cut = self._open = False
        """Whether the last bytes are lost, whether these ended within a line, and those that were written."""

    def write(self, data: bytes) -> None:
        if self._left or not data:
            return
        start = data.find(b"\n") + 1 if self._cut else 0  # the rest of a line that is lost
        if self._gap and (time.monotonic() < self._again_at or (self._cut and not start)):
            self._lose(data)
            return
        done = start
        try:
            if self._gap and self._open:
                writing.write_all(self._fd, b"\n")
                self._open = False
            while done < len(data):
                done += writing.write_some(self._fd, memoryview(data)[done:])
                self._open = data[done - 1] != ord("\n")
        except OSError as error:
            self._failed(error, data[:start] + data[done:])
        else:
            self._lines += data.count(b"\n", 0, start)
            self._gap = self._cut = False

    def _failed(self, error: OSError, data: bytes) -> None:
        if error.errno == errno.EPIPE or (error.errno == errno.EIO and os.isatty(self._fd)):
            self._left = True
            return
        first, self.reason = not self.reason, str(error.strerror)
        self._gap, self._again_at = True, time.monotonic() + _AGAIN_S
        self._lose(data)
        if first:
            self._say(f"warning: {self._name}: {self.reason}: lines are lost until it can be written again")

    def _lose(self, data: bytes) -> None:
        self._lines += data.count(b"\n")
        self._cut = not data.endswith(b"\n")

    def report(self) -> None:
        if self.reason:
            self._say(f"warning: {self._lines} lines of {self._name} were lost: {self.reason}")
