"""What to write once the stream accepts data again: the rest of a line, events, and counts of lost lines."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

_WAITING_BYTES = 1024 * 1024
"""At most this many bytes of events wait for space; the oldest are dropped first."""

_UNIMPORTANT = (b'{"event":"heartbeat"', b'{"event":"sample"', b'{"event":"block"')
_COUNTED = (b'{"event":"heartbeat"', b'{"event":"done"')


class Backlog:
    """The pending lines, in the order in which they are to be written."""

    def __init__(self, event: Callable[..., bytes]) -> None:
        """`event` encodes an event from a name and fields."""
        self._event = event
        self._lost = self._told = 0
        """The number of dropped lines, and how many of them the stream has reported."""

        self._untold: Dict[str, Dict[int, int]] = {}
        """The unreported ones, by reason and rank."""

        self._line, self._from = b"", 0
        """The line being written, and how many bytes of it are in the stream."""

        self._line_tells: Optional[Tuple[str, Dict[int, int]]] = None
        """The lost lines that this line reports."""

        self._events: List[bytes] = []
        self._broken: List[bytes] = []

    @property
    def has_losses(self) -> bool:
        """Whether there are lost lines that the stream has not reported yet."""
        return bool(self._untold)

    def lose(self, rank: int, lines: int, reason: str) -> None:
        """Count lines that are dropped."""
        self._lost += lines
        ranks = self._untold.setdefault(reason, {})
        ranks[rank] = ranks.get(rank, 0) + lines

    def close_line(self, tag: bytes) -> None:
        """End a line with that tag: the stream has a piece of it, and the rest is lost."""
        self._broken.append(tag)

    def write_on(self, line: bytes, done: int) -> None:
        """Complete this line first, of which `done` bytes are in the stream."""
        self._line, self._from = line, done

    def wait(self, event: bytes, done: int) -> None:
        """Keep an event, of which `done` bytes are in the stream."""
        if done:
            self.write_on(event, done)
        elif not event.startswith(_UNIMPORTANT):
            self._events.append(event)
            while sum(map(len, self._events)) > _WAITING_BYTES:
                del self._events[0]

    def events(self) -> Sequence[bytes]:
        """The waiting events."""
        return [self._line, *self._events] if self._line.startswith(b"{") else self._events

    def next(self) -> bytes:
        """The bytes to write next; empty if nothing is left."""
        if not self._line:
            self._find()
        return self._line[self._from :]

    def written(self, count: int) -> bool:
        """Record how many of these bytes were written; whether all were. An unstarted report is counted anew later."""
        self._from += count
        whole = self._from >= len(self._line)
        if not whole and not self._from and self._line_tells:
            reason, ranks = self._line_tells
            self._line, self._untold[reason] = b"", ranks  # by then there may be more
            self._told -= sum(ranks.values())
        if whole:
            self._line, self._from = b"", 0
        return whole

    def _find(self) -> None:
        self._line_tells = None
        while not self._broken and self._untold:
            reason, ranks = self._untold.popitem()
            lines = sum(ranks.values())
            if lines:
                self._told += lines
                self._line_tells = reason, ranks
                self._line = self._lines_lost(lines, sorted(ranks), reason)
                return
        if self._broken:
            self._line = self._broken.pop() + b" \n"  # the rest of the line is lost
        elif self._events:
            self._line = self.counted(self._events.pop(0))

    def lost_in_all(self, reason: str) -> bytes:
        """An event for all lost lines that the stream has not reported."""
        return self._lines_lost(self._lost - self._told, [], reason)

    def _lines_lost(self, lines: int, ranks: List[int], reason: str) -> bytes:
        return self._event("lines_lost", lines=lines, ranks=ranks, reason=reason, total=self._lost)

    def counted(self, data: bytes) -> bytes:
        """The event with the number of lost lines, if it is of a kind that reports it."""
        if self._lost and data.startswith(_COUNTED):
            return re.sub(rb'(,"lines_lost":\d+)?}\n\Z', b',"lines_lost":%d}\n' % self._lost, data)
        return data
