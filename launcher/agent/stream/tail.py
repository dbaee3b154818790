"""The latest stderr output of a worker: the end, and the start of the traceback that reaches into it."""

from __future__ import annotations

import re
import time

TRACEBACK = b"Traceback (most recent call last):\n"
_END_BYTES = 32 * 1024
_HEAD_BYTES = 16 * 1024
_EXITS_S = 60.0
"""How long a process may take to exit after the exception that ends it; one that it printed earlier was handled."""

_LAST_LINE = re.compile(rb"\n(?!\s|\[rank\d+\]: \s)")
"""Where a line of a traceback begins that is not indented: the exception."""


class Tail:
    """Takes bytes in order; `text` is what is kept of them."""

    def __init__(self) -> None:
        self._end = b""
        self._head = b""
        """The start of the last traceback, as long as the end has some of it."""

        self._head_ends = False
        """Whether the exception of that traceback has begun before the end."""

        self._raised_at = 0.0

    def add(self, data: bytes) -> None:
        """Keep what matters of the data."""
        known = self._end + data
        begin = known.rfind(TRACEBACK)
        if begin >= 0:
            self._head, self._head_ends = known[begin : begin + _HEAD_BYTES], False
            if begin + len(TRACEBACK) > len(self._end):
                self._raised_at = time.time()
        elif self._head and len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        start, end = begin + len(TRACEBACK) - 1 if begin >= 0 else 0, len(known) - _END_BYTES
        if self._head and start < end:
            self._let_go(known, start, end)
        self._end = known[-_END_BYTES:]

    def _let_go(self, known: bytes, start: int, end: int) -> None:
        """Forget the start of a traceback if this part of what is known, which is let go, has all of its exception."""
        if not self._head_ends:
            found = _LAST_LINE.search(known, start)
            self._head_ends = found is not None and found.start() < end
            start = found.end() if found else end
        if self._head_ends and known.find(b"\n", start, end) >= 0:
            self._head = b""

    def text(self, ended_at: float) -> bytes:
        """What a process has said last that ended then: the end, preceded by the start of a traceback that is longer.

        A traceback is left out if the process ran on after it.
        """
        if ended_at - self._raised_at > _EXITS_S:
            return self._end.rpartition(TRACEBACK)[2]
        if TRACEBACK in self._end or not self._head:
            return self._end
        return self._head + b"\n" + (self._end.partition(b"\n")[2] or self._end)
