"""Reads agent streams in bulk: does what `protocol.Decoder` does at the speed of a copy.

Consecutive whole lines of one rank and pipe become one `Output`, and lines of unwanted ranks are skipped without being
examined one by one. A million lines take a fraction of a second instead of several seconds.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import MAX_PENDING_BYTES, Foreign, Output
from launcher.runs import events
from launcher.runs.sources import JOB_OUTPUT, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.agent.protocol import Record

_TAG = re.compile(rb"(\d{1,9})\.(\d{1,9})([|!])([ +])")
_LINES = re.compile(rb"(\d{1,9}\.\d{1,9}[|!] )[^\n]*(?:\n\1[^\n]*)*")
"""Lines with the same tag. One pattern serves all tags, as there may be any number of nodes and ranks."""

Wanted = frozenset[int]
"""Ranks whose output is read."""


class StreamReader:
    """Turns the bytes of one node's stream, split anywhere, into records. Skips output of unwanted ranks."""

    def __init__(self, wanted: Wanted | None = None, node: Source | None = None) -> None:
        """`wanted` None: all ranks. `node`: the stream's node; lines of other nodes are foreign. None: any node."""
        self._wanted = wanted
        self._rest = b""
        self._node = None if node is None else b"" if node == JOB_OUTPUT else b"%d" % node
        self._unwanted = None if wanted is None else _unwanted(wanted)

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that `data` completes, in order."""
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > MAX_PENDING_BYTES:
            # No agent writes lines this long; bound the memory that they take.
            data, end, self._rest = data + b"\n", len(data) + 1, b""
        return self._records(data, end)

    def close(self) -> Iterator[Record]:
        """Records of a last line that was cut off."""
        rest, self._rest = self._rest, b""
        return self._records(rest + b"\n", len(rest) + 1) if rest else iter(())

    def _records(self, data: bytes, end: int) -> Iterator[Record]:
        """The records of the whole lines in `data[:end]`."""
        position = 0
        while position < end:
            tag = _TAG.match(data, position)
            if tag is None or self._node not in (None, tag[1]):
                stop = data.index(b"\n", position)
                line = data[position:stop]
                found = events.record(line)
                yield Foreign(line) if isinstance(found, Output) else found
            else:
                node, rank, mark, more = tag.groups()
                if self._wanted is not None and int(rank) not in self._wanted:
                    assert self._unwanted is not None
                    skipped = self._unwanted.match(data, position, end - 1)
                    stop = skipped.end() if skipped else data.index(b"\n", position)
                elif more == b"+":
                    stop = data.index(b"\n", position)
                    yield Output(int(node), int(rank), mark == b"!", data[tag.end() : stop], False)
                else:
                    same = _LINES.match(data, position, end - 1)
                    assert same is not None, "it has a tag"
                    stop = same.end()
                    lines = data[tag.end() : stop].replace(b"\n" + tag[0], b"\n")
                    yield Output(int(node), int(rank), mark == b"!", lines, True)
            position = stop + 1


@cache
def _unwanted(wanted: Wanted) -> re.Pattern[bytes]:
    """Lines of one node's unwanted ranks."""
    ranks = b"|".join(b"%d" % rank for rank in sorted(wanted)) or rb"(?!)"
    rest = rb"\.(?!(?:%b)[|!])\d{1,9}[|!][ +][^\n]*" % ranks
    return re.compile(rb"(\d{1,9})%b(?:\n\1%b)*" % (rest, rest))


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
