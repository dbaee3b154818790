"""Reads agent streams in bulk: does what `protocol.Decoder` does at the speed of a copy.

Consecutive whole lines of one rank and pipe become one `Output`, and lines of unwanted ranks are skipped without being
examined one by one. A million lines take a fraction of a second instead of several seconds.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.protocol import MAX_PENDING_BYTES, RECORD, Foreign, Output, line_mark
from launcher.runs import blocks, events
from launcher.runs.sources import JOB_OUTPUT, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.agent.protocol import Record

    Records = Iterator["Record | MarkedLines"]

_LINES = re.compile(rb"(\[\d{1,9}:\d{1,9}\] |\d{1,9}\.\d{1,9}[|!] )[^\n]*(?:\n\1[^\n]*)*")
"""Lines with the same mark. One pattern serves all marks, as there may be any number of nodes and ranks."""

_LONG_BYTES = 16 * 1024
"""So many bytes with the same mark are searched for their end by a pattern of their own, which takes half the time."""

_SHARE = 4
"""Lines that are less than this share of what was read are copied: what waits for a slow terminal keeps no more."""

Wanted = frozenset[int]
"""Ranks whose output is read."""


class MarkedLines(NamedTuple):
    """Many whole lines that a rank wrote to stdout, as they are in the stream: each begins with `line_mark`."""

    node: int
    rank: int
    data: bytes | memoryview
    """With the last newline."""

    def output(self) -> Output:
        """The lines without their marks."""
        mark = line_mark(self.node, self.rank)
        text = b"\n".join(_mark(mark).split(memoryview(self.data)[len(mark) : -1]))
        return Output(self.node, self.rank, False, text, True)


class _Begun(NamedTuple):
    """Lines with the same mark that are cut off, after the frame that tells their size."""

    frame: bytes
    data: bytes
    at: int
    """Where the frame is in the data; the lines are the rest of it."""

    missing: int
    """So many more bytes, then the same frame ends them; none, if only that is cut off."""

    def is_completed_by(self, data: bytes) -> bool:
        """Whether all that is missing is at the beginning of the data."""
        return self.missing > 0 and data.startswith(b"\n" + self.frame, self.missing - 1)

    def parts(self, data: bytes, read: Callable[..., Records]) -> Iterator[Records]:
        """What `read` makes of the lines: only the one that is cut is copied."""
        first, cut = data.find(b"\n", 0, self.missing) + 1, self.data.rfind(b"\n") + 1
        begins = self.at + len(self.frame)
        yield read(self.data, begins, cut, block=cut - 1)
        line = self.data[cut:] + data[:first]
        yield read(line, 0, len(line))
        yield read(data, first, self.missing, block=self.missing - 1)


class StreamReader:
    """Turns the bytes of one node's stream, split anywhere, into records. Skips output of unwanted ranks."""

    def __init__(self, wanted: Wanted | None = None, node: Source | None = None) -> None:
        """`wanted` None: all ranks. `node`: the stream's node; lines of other nodes are foreign. None: any node."""
        self._wanted = wanted
        self._rest = b""
        """A line that is cut off."""

        self._begun: _Begun | None = None
        """The last lines, if there are many and they are cut off; `_rest` is empty then."""

        self._node = None if node is None else b"" if node == JOB_OUTPUT else b"%d" % node
        self._unwanted = None if wanted is None else _unwanted(wanted)

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that `data` completes, in order."""
        return map(_plain, self.feed_marked(data))

    def feed_marked(self, data: bytes, *, more: bool = False) -> Records:
        """The same, but many lines of one rank stay as the stream and terminals have them.

        `more`: this is called again at once, even with no bytes, so lines that are cut off may wait for the others.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun.is_completed_by(data):
            position = begun.missing + len(begun.frame)
            return chain(*begun.parts(data, self._records), self._whole_lines(data, position, more=more))
        if begun is not None:
            self._rest, more = begun.data[begun.at :], False  # lines wait once
        rest, first = self._rest, data.find(b"\n") + 1 if self._rest and begun is None else 0
        if rest and not first:
            rest, data = b"", rest + data
        ahead = rest + data[:first] if rest else b""  # the other lines are not copied
        return chain(self._records(ahead, 0, len(ahead)), self._whole_lines(data, first, more=more))

    def _whole_lines(self, data: bytes, position: int, *, more: bool) -> Records:
        """The records of the whole lines in `data` from `position` on; what follows them is kept."""
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > MAX_PENDING_BYTES:
            # No agent writes lines this long; bound the memory that they take.
            data, end, self._rest = data + b"\n", len(data) + 1, b""
        return self._records(data, position, end, more=more)

    def close(self) -> Iterator[Record]:
        """Records of a last line that was cut off."""
        if self._begun is not None:
            self._rest, self._begun = self._begun.data[self._begun.at :], None
        rest, self._rest = self._rest, b""
        return map(_plain, self._records(rest + b"\n", 0, len(rest) + 1)) if rest else iter(())

    def _records(self, data: bytes, position: int, end: int, *, more: bool = False, block: int = 0) -> Records:
        """The records of the whole lines in `data[position:end]`.

        `block`: where lines with the same mark that begin here are known to stop.
        """
        after = 0  # what follows them
        while position < end:
            mark = RECORD.match(data, position)
            node = mark and (mark[1] or mark[3])
            if mark is None and (frame := blocks.FRAME.match(data, position, end)):
                if more and self._waits(data, frame):
                    return
                position, block, after = frame.end(), _block(data, frame, end), len(frame[0])
                continue
            if mark is None or self._node not in (None, node):
                stop = data.index(b"\n", position)
                line = data[position:stop]
                found = events.record(line)
                yield Foreign(line) if isinstance(found, Output) else found
            elif self._wanted is not None and int(mark[2] or mark[4]) not in self._wanted:
                stop = block or self._skipped(data, position, end, mark)
            elif mark[6] == b"+":
                stop = data.index(b"\n", position)
                yield Output(int(mark[3]), int(mark[4]), mark[5] == b"!", data[mark.end() : stop], False)
            else:
                stop = block or _stop(data, position, end, mark[0])
                part = stop + 1 - position
                yield _lines(mark, (memoryview(data) if part * _SHARE > len(data) else data)[position : stop + 1])
            position, block = stop + 1 + (after if block and stop == block else 0), 0

    def _waits(self, data: bytes, frame: re.Match[bytes]) -> bool:
        """Keep the lines after the frame for the next time if they are cut off."""
        missing = frame.end() + int(frame[1]) - len(data)
        if not 0 < missing + len(frame[0]) < MAX_PENDING_BYTES:
            return False
        self._rest, self._begun = b"", _Begun(frame[0], data, frame.start(), missing)
        return True

    def _skipped(self, data: bytes, position: int, end: int, mark: re.Match[bytes]) -> int:
        """Where lines of unwanted ranks stop."""
        assert self._unwanted is not None
        if mark[6] != b"+" and data.startswith(mark[0], data.find(b"\n", position + _LONG_BYTES) + 1):
            return _stop(data, position, end, mark[0])
        skipped = self._unwanted.match(data, position, end - 1)
        return skipped.end() if skipped else data.index(b"\n", position)


def _plain(record: Record | MarkedLines) -> Record:
    return record.output() if isinstance(record, MarkedLines) else record


def _lines(mark: re.Match[bytes], lines: bytes | memoryview) -> Output | MarkedLines:
    """Whole lines with this mark at the start of each."""
    node, rank = int(mark[1] or mark[3]), int(mark[2] or mark[4])
    if len(lines) > _LONG_BYTES and mark[0] == line_mark(node, rank):
        return MarkedLines(node, rank, lines)
    text = bytes(lines[len(mark[0]) : -1]).replace(b"\n" + mark[0], b"\n")
    return Output(node, rank, mark[5] == b"!", text, True)


def _block(data: bytes, frame: re.Match[bytes], end: int) -> int:
    """Where the lines after the frame stop; 0 unless they are all there: then the same frame follows them."""
    stop = frame.end() + int(frame[1]) - 1
    return stop if data.startswith(frame[0], stop + 1, end) else 0


def _stop(data: bytes, position: int, end: int, mark: bytes) -> int:
    """Where lines with this mark stop: the place of their last newline."""
    if data.startswith(mark, data.find(b"\n", position + _LONG_BYTES, end) + 1):
        other = _other(mark).search(data, position, end - 1)
        return other.start() if other else end - 1
    same = _LINES.match(data, position, end - 1)
    assert same is not None, "it has a mark"
    return same.end()


@lru_cache(maxsize=256)
def _other(mark: bytes) -> re.Pattern[bytes]:
    """The end of a line that is followed by one without this mark."""
    return re.compile(rb"\n(?!%b)" % re.escape(mark))


@lru_cache(maxsize=256)
def _mark(mark: bytes) -> re.Pattern[bytes]:
    """The beginning of a line with this mark, after another one. It finds many in two thirds of `replace`'s time."""
    return re.compile(rb"\n" + re.escape(mark))


@cache
def _unwanted(wanted: Wanted) -> re.Pattern[bytes]:
    """Lines of one node's unwanted ranks."""
    ranks = b"|".join(b"%d" % rank for rank in sorted(wanted)) or rb"(?!)"
    rest = rb"(?:\[%b:(?!(?:%b)\])\d{1,9}\] |%b\.(?!(?:%b)[|!])\d{1,9}[|!][ +])[^\n]*"
    first = rest % (rb"(\d{1,9})", ranks, rb"(\d{1,9})", ranks)
    more = rest % (rb"(?:\1|\2)", ranks, rb"(?:\1|\2)", ranks)
    return re.compile(rb"%b(?:\n%b)*" % (first, more))


def lost_text(fields: Mapping[str, Any]) -> str:
    """A `lines_lost` event as text."""
    lines = fields.get("lines")
    count = f"{lines:,} line{'s' * (lines != 1)}" if isinstance(lines, int) else "lines"
    ranks = fields.get("ranks")
    of = f" of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if isinstance(ranks, list) and ranks else ""
    return f"{count}{of} {'was' if lines == 1 else 'were'} not kept: {fields.get('reason')}"


def hang_text(fields: Mapping[str, Any]) -> str:
    """A `hang` event as text."""
    return f"no progress for {fields.get('silent_s')} s: {fields.get('message')}"


def parse_ranks(text: str) -> Wanted | None:
    """Parse `all` (None), or numbers and ranges like `0,3-5`. Raises `ValueError`."""
    if text.strip() == "all":
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part, re.ASCII)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(text)
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)
