"""Searches the bytes of an agent stream for what a report needs: events, and the last lines of each rank.

A stream may have millions of lines. They are searched, not parsed, so a gigabyte takes seconds, and memory is bounded
by the number of ranks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.protocol import MAX_PENDING_BYTES, Event, Output, record_marks
from launcher.runs import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EVENT = b'\n{"event":"'
_UNWANTED, _SAMPLE, _WHOLE = b'heartbeat"', b'sample"', b'"whole":true'
_MAX_RANKS = 4096
_MOST_WAITING = 8
_MAX_LINE = 4096
"""Bytes of a line that are kept."""


class TailLine(NamedTuple):
    """One line that a rank has written."""

    stderr: bool
    text: bytes


class StreamSearch:
    """Takes one node's stream, split anywhere."""

    def __init__(self, node: int, kept_lines: int, *, sample_every: int = 0) -> None:
        self._node, self._kept = node, kept_lines
        self.sample_every = sample_every
        """Take every n-th sample of those that name all fields, of which there is one in a minute; 0: all samples."""

        self._whole_samples, self._skipped = 0, b""
        self._rest = b""
        self._records: dict[int, deque[bytes]] = {}
        """The last records of each known rank, undecoded."""

        self._waiting: list[tuple[bytes, int]] = []
        """Data that has not been searched for them: most of it will not have the last ones."""

    def feed(self, block: bytes) -> Iterator[Event]:
        """The events that `block` completes, without heartbeats."""
        data = b"".join((b"\n", self._rest, block))  # each line follows a newline
        end = data.rfind(b"\n") + 1
        if end == 1 and len(data) > MAX_PENDING_BYTES:  # no agent writes such lines
            data, end = data + b"\n", len(data) + 1
        self._rest = data[end:]
        return self._search(data, end)

    def close(self) -> Iterator[Event]:
        """The events of a last line that was cut off, and the last sample if it was left out."""
        rest, self._rest = self._rest, b""
        if self._skipped and isinstance(record := events.record(self._skipped), Event):
            yield record
        if rest:
            yield from self._search(b"\n" + rest + b"\n", len(rest) + 2)

    def settle(self) -> None:
        """Take the last lines of what was fed, from its end on, and keep no more of it."""
        found: dict[int, list[bytes]] = {rank: [] for rank in self._records}
        for data, size in reversed(self._waiting):
            for rank, lines in found.items():
                if len(lines) < self._kept:
                    lines[:0] = self._last_records(data, size, rank)
        for rank, kept in self._records.items():
            kept.extend(found[rank])
        self._waiting.clear()

    def lines(self) -> dict[int, list[TailLine]]:
        """The last lines of each rank, in order."""
        self.settle()
        return {rank: _joined(map(events.record, kept)) for rank, kept in sorted(self._records.items())}

    def _search(self, data: bytes, size: int) -> Iterator[Event]:
        """The events in `data[:size]`, which begins with a newline and ends with one."""
        at = data.find(_EVENT, 0, size)
        while at >= 0:
            end = data.find(b"\n", at + 1)
            if self._wants(data, at + len(_EVENT), end):
                record = events.record(data[at + 1 : end])
                if isinstance(record, Event):
                    self._know(record)
                    yield record
            at = data.find(_EVENT, end, size)
        if not self._records:  # the beginning is missing
            self._know_tag(data[:size])
        self._waiting.append((data, size))
        if len(self._waiting) == _MOST_WAITING:
            self.settle()

    def _wants(self, data: bytes, name: int, end: int) -> bool:
        """Whether the event whose name begins there is worth parsing."""
        if self.sample_every and data.startswith(_SAMPLE, name):
            if data.find(_WHOLE, name, end) < 0:
                return False
            wanted = self._whole_samples % self.sample_every == 0
            self._whole_samples += 1
            self._skipped = b"" if wanted else data[name - len(_EVENT) + 1 : end]
            return wanted
        return not data.startswith(_UNWANTED, name)

    def _know(self, event: Event) -> None:
        """Expect lines of the ranks that the event names."""
        named = event.fields.get("ranks") if event.name == "rendezvous" else None
        if event.name == "worker_started":
            named = [event.fields.get("rank")]
        self._expect(rank for rank in named or () if isinstance(rank, int))

    def _know_tag(self, data: bytes) -> None:
        found = (events.record(line) for line in data.split(b"\n"))
        self._expect({record.rank for record in found if isinstance(record, Output) and record.node == self._node})

    def _expect(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if len(self._records) < _MAX_RANKS:
                self._records.setdefault(rank, deque(maxlen=self._kept))

    def _last_records(self, data: bytes, size: int, rank: int) -> list[bytes]:
        """The rank's last records, found from the end."""
        marks = [b"\n" + mark for mark in record_marks(self._node, rank)]
        places = [data.rfind(mark, 0, size) for mark in marks]
        found: list[bytes] = []
        while (at := max(places)) >= 0 and len(found) < self._kept:
            end = data.find(b"\n", at + 1)
            found.append(data[at + 1 : min(end, at + _MAX_LINE)])
            which = places.index(at)
            places[which] = data.rfind(marks[which], 0, at)
        return found[::-1]


def _joined(records: Iterable[object]) -> list[TailLine]:
    """Whole lines of the records; parts of one line are joined."""
    parts: dict[bool, bytes] = {}
    lines: list[TailLine] = []
    for record in records:
        if isinstance(record, Output):
            text = (parts.pop(record.stderr, b"") + record.data)[:_MAX_LINE]
            if record.ends_line:
                lines.append(TailLine(record.stderr, text))
            else:
                parts[record.stderr] = text
    return lines + [TailLine(stderr, text) for stderr, text in parts.items() if text]
