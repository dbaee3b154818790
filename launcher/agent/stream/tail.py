"""The latest stderr output of a worker: the end, and the start of the traceback that reaches into it."""

from __future__ import annotations

import re
import time
from typing import Optional, Sequence

TRACEBACK = b"Traceback (most recent call last):\n"
_END_BYTES = 32 * 1024
_HEAD_BYTES = 16 * 1024
_LEAST_BYTES = 16
"""A line that begins at the end of the head is kept from this size on: it may be an exception's, and be long."""

_AT_ONCE_S = 2.0
"""What is written so soon after the start of a traceback may be of it: an exception's message can have any size."""

_SPEAKS_S, _EXITS_S = 60.0, 900.0
"""How long a process may write after the exception that ends it, or call `sys.exit` outside of its handler, and how
long it may take to exit: it joins threads, and trackers send the rest. One that it printed earlier was handled."""

_LAST_LINE = rb"\n(?!\s|\[rank\d+\]: \s)"
"""Where a line of a traceback begins that is not indented: the exception."""

_GROUP = b"+ Exception Group " + TRACEBACK
_BEFORE_OF_GROUP = rb"(?:\[rank\d+\]: )?\s+(?:[+|] Exception Group |\| )"
"""What is before `TRACEBACK` on the line in a group of exceptions, and in one of its members."""

_LAST_LINE_OF_GROUP = rb"\n(?:\[rank\d+\]: )?\s*\| (?!\s)"
"""The same of a group of exceptions, whose lines are all indented."""


class Tail:
    """Takes bytes in order; `text` is what is kept of them."""

    def __init__(self) -> None:
        self._end = b""
        self._head = b""
        """The start of the last traceback, as long as the end has some of it."""

        self._head_ends = self._is_over = False
        """Whether the exception of that traceback has begun before the end; whether its line has ended there, too."""

        self._raised_at = self._said_at = 0.0

    def add(self, data: bytes) -> None:
        """Keep what matters of the data."""
        known, self._said_at = self._end + data, time.time()
        begin = known.rfind(TRACEBACK)
        if begin >= 0:
            self._head, self._head_ends = known[begin : begin + _HEAD_BYTES], False
            self._is_over = False
            if begin + len(TRACEBACK) > len(self._end):
                self._raised_at = self._said_at
        elif self._head and len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        start, end = begin + len(TRACEBACK) - 1 if begin >= 0 else 0, len(known) - _END_BYTES
        if self._head and start < end:
            self._let_go(known, start, end)
        if self._is_over and self._said_at - self._raised_at > _AT_ONCE_S:
            self._head = b""
        self._end = known[-_END_BYTES:]

    def _let_go(self, known: bytes, start: int, end: int) -> None:
        """Note whether this part of what is known, which is let go, has the exception of the last traceback."""
        if not self._head_ends:
            found = re.compile(_LAST_LINE).search(known, start)
            self._head_ends = found is not None and found.start() < end
            start = found.end() if found else end
        self._is_over = self._is_over or (self._head_ends and known.find(b"\n", start, end) >= 0)

    def text(self, ended_at: float, exit_at: Optional[float] = None, handles: Sequence[str] = ()) -> bytes:
        """What a process has said last that ended then: the end, preceded by the start of a traceback that is longer.

        A traceback is left out if the process ran on after it. `exit_at`: when its script called `sys.exit`, if it did;
        `handles`: the types of the exceptions in whose handlers it did.
        """
        whole, runs_on = self._end, ended_at - self._raised_at > _EXITS_S
        if self._head and TRACEBACK not in whole:
            whole = _whole_lines(self._head) + b"\n" + (whole.partition(b"\n")[2] or whole)
        if exit_at is not None and not _is_of(whole, handles):
            runs_on = exit_at - self._raised_at > _SPEAKS_S
        if runs_on or self._said_at - self._raised_at > _SPEAKS_S:
            return self._end.rpartition(TRACEBACK)[2]
        return whole


def _whole_lines(head: bytes) -> bytes:
    """The same without the first bytes of one more line: they would read as the exception, such as `[rank0]:`."""
    lines, _, more = head.rpartition(b"\n")
    return lines if len(more) < _LEAST_BYTES else head


def _is_of(text: bytes, types: Sequence[str]) -> bool:
    """Whether the last traceback there is of an exception of one of these types."""
    begin, line = max(0, text.rfind(TRACEBACK)), _LAST_LINE
    before = re.fullmatch(_BEFORE_OF_GROUP, text[text.rfind(b"\n", 0, begin) + 1 : begin])
    if before:  # the group's own name comes before the traceback of a member
        begin, line = max(0, text.rfind(_GROUP, 0, begin + len(TRACEBACK))), _LAST_LINE_OF_GROUP
    found = re.compile(line).search(text, begin)
    names = b"|".join(re.escape(name.encode()) for name in types)
    own = re.compile(rb"(?:\[rank\d+\]: )?(?:[\w.]+\.)?(?:%b)\s*(?::|\n|$)" % names)
    return found is not None and bool(names) and own.match(text, found.end()) is not None
