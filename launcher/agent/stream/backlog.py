"""What is to be told on the stream when it can be written again: the rest of a line, events, and how many lines were lost."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

_WAITING_BYTES = 1024 * 1024
"""So many events wait for room at most: the oldest go first."""

_UNIMPORTANT = b'{"event":"heartbeat"'
_COUNTED = (_UNIMPORTANT, b'{"event":"done"')


class Backlog:
    """Line by line, in the order in which it is to be written."""

    def __init__(self, event: Callable[..., bytes]) -> None:
        """`event` makes one of a name and fields."""
        self._event = event
        self._lost = self._told = 0
        """Lines that were not kept, and those of them that the stream tells of."""

        self._untold: Dict[str, Dict[int, int]] = {}
        """Of the others how many by reason and rank."""

        self._line, self._from = b"", 0
        """What is written now, and from where on."""

        self._line_tells: Optional[Tuple[str, Dict[int, int]]] = None
        """The lost lines of which it tells."""

        self._events: List[bytes] = []
        self._broken: List[bytes] = []

    @property
    def has_losses(self) -> bool:
        """Whether lines were lost of which the stream does not tell yet."""
        return bool(self._untold)

    def lose(self, rank: int, lines: int, reason: str) -> None:
        """Count lines that are not kept."""
        self._lost += lines
        ranks = self._untold.setdefault(reason, {})
        ranks[rank] = ranks.get(rank, 0) + lines

    def close_line(self, tag: bytes) -> None:
        """A piece of a line with that tag stands in the stream, and what followed it is lost."""
        self._broken.append(tag)

    def write_on(self, line: bytes, done: int) -> None:
        """That line comes first; so many bytes of it are in the stream."""
        self._line, self._from = line, done

    def wait(self, event: bytes, done: int) -> None:
        """Keep an event, of which so many bytes are in the stream."""
        if done:
            self.write_on(event, done)
        elif not event.startswith(_UNIMPORTANT):
            self._events.append(event)
            while sum(map(len, self._events)) > _WAITING_BYTES:
                del self._events[0]

    def events(self) -> Sequence[bytes]:
        """Those that wait."""
        return [self._line, *self._events] if self._line.startswith(b"{") else self._events

    def next(self) -> bytes:
        """What is to be written now; empty: nothing is left."""
        if not self._line:
            self._find()
        return self._line[self._from :]

    def written(self, count: int) -> bool:
        """Note that so many bytes of it were; whether that was all of it. What was not begun counts lost lines anew later."""
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
            self._line = self._broken.pop() + b" \n"  # what a piece of a line was followed by is lost
        elif self._events:
            self._line = self.counted(self._events.pop(0))

    def lost_in_all(self, reason: str) -> bytes:
        """An event of all lost lines of which none tells."""
        return self._lines_lost(self._lost - self._told, [], reason)

    def _lines_lost(self, lines: int, ranks: List[int], reason: str) -> bytes:
        return self._event("lines_lost", lines=lines, ranks=ranks, reason=reason, total=self._lost)

    def counted(self, data: bytes) -> bytes:
        """The event with the number of lines that were lost, where it is one that tells it."""
        if self._lost and data.startswith(_COUNTED):
            return re.sub(rb'(,"lines_lost":\d+)?}\n\Z', b',"lines_lost":%d}\n' % self._lost, data)
        return data
