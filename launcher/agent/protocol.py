"""The agent stream: the one format in which every backend reports. `docs/agent-stream.md` is its reference.

A stream is a sequence of lines of three kinds:

    {"event": "worker_started", ...}     an event: JSON in ASCII, with `time` and `node`
    [1:5] text                           a line that rank 5 on node 1 wrote to stdout, as a terminal shows it
    1.5! text                            the same for stderr
    1.5|+text                            a piece of a line on stdout
    1.5!+text                            the same for stderr

A piece continues in the next record of that rank and stream: a progress bar, a prompt, or a line longer than one
record. Payload bytes are unchanged; only the newline has a meaning. `1.5| text` is a whole line on stdout, too: all
were written so in format 1, and what a full disk cuts off still ends so. Any other line is foreign: something between
agent and reader (a scheduler, ssh) wrote it.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Dict, Iterator, List, Tuple, Union

from .named_tuple import NamedTuple

VERSION = 2

MAX_PAYLOAD_BYTES = 64 * 1024
"""A line longer than this is sent in several records."""

MAX_PENDING_BYTES = 1024 * 1024
"""The decoder never holds more than this of an unfinished line; no event is longer."""

_COPIED_BYTES = 16 * 1024
"""Up to here, records are copied into one piece."""

NOT_NEEDED = "this node is not needed: the run ended before it joined"
"""The warning of a node that joined after the others had finished."""

STDOUT, STDERR = "stdout", "stderr"
_MARKS = {STDOUT: "|", STDERR: "!"}
RECORD = re.compile(rb"(?:\[(\d{1,9}):(\d{1,9})\] |(\d{1,9})\.(\d{1,9})([|!])([ +]))", re.ASCII)
"""The mark at the start of a worker's line: node and rank of a whole line on stdout, or of another record."""


def line_mark(node: int, rank: int) -> bytes:
    """The mark of a whole line on stdout, in the stream and on the terminal."""
    return b"[%d:%d] " % (node, rank)


def record_marks(node: int, rank: int) -> Tuple[bytes, ...]:
    """How that rank's records begin."""
    return line_mark(node, rank), b"%d.%d|" % (node, rank), b"%d.%d!" % (node, rank)


def is_record(line: bytes) -> bool:
    """Whether this is a worker's line in the stream."""
    return RECORD.match(line) is not None


class Event(NamedTuple):
    """A report about the agent, its node or its workers."""

    name: str
    fields: Dict[str, Any]


class Output(NamedTuple):
    """Bytes that a worker wrote: a whole line without its newline, or a piece of one."""

    node: int
    rank: int
    stderr: bool
    data: bytes
    ends_line: bool


class Foreign(NamedTuple):
    """A line that no agent wrote."""

    data: bytes


Record = Union[Event, Output, Foreign]


def encode_event(name: str, node: int, **fields: Any) -> bytes:
    """One event line, no longer than a decoder accepts; adds `time` in unix seconds."""
    event: Any = {"event": name, "time": round(time.time(), 3), "node": node, **fields}
    for limit in (None, 16 * 1024, 1024, 0):
        line = (
            json.dumps(event if limit is None else _shortened(event, limit), separators=(",", ":")).encode("ascii")
            + b"\n"
        )
        if len(line) < MAX_PENDING_BYTES:
            break
    return line


def _shortened(value: Any, limit: int) -> Any:
    """The value with all strings and lists cut to `limit`."""
    if isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]}[... {len(value) - limit} characters left out]"
    if isinstance(value, dict):
        return {key: _shortened(item, limit) if key != "event" else item for key, item in value.items()}
    return [_shortened(item, limit) for item in value[:limit]] if isinstance(value, (list, tuple)) else value


class LineTagger:
    """Turns what one worker writes to one pipe into records; holds at most the last piece of an unfinished line."""

    def __init__(self, node: int, rank: int, stream: str) -> None:
        self.tag = f"{node}.{rank}{_MARKS[stream]}".encode()
        """Prefix of its records, but for whole lines of stdout."""

        self._whole = line_mark(node, rank) if stream == STDOUT else self.tag + b" "
        self._next, self._part = b"\n" + self._whole, self.tag + b"+"
        self.pending = b""
        self.lines = 0
        """How many lines were completed."""

        self.pieces = 0
        """How many records without the end of a line there were."""

    def feed(self, data: bytes) -> bytes:
        """Records for all lines that `data` completes; what follows the last newline waits in `pending`."""
        return b"".join(self.records(data))

    def records(self, data: bytes) -> List[Union[bytes, memoryview]]:
        """The same in pieces of whole records, of which the largest is not copied."""
        size = MAX_PAYLOAD_BYTES
        if any(data.find(b"\n", at, at + size) < 0 for at in range(0, len(data) - size, size)):  # a long line
            return [piece for at in range(0, len(data), size) for piece in self._records(data[at : at + size])]
        return self._records(data)

    def _records(self, data: bytes) -> List[Union[bytes, memoryview]]:
        marked = data.replace(b"\n", self._next)  # one pass marks, counts, and copies
        added = len(marked) - len(data)
        out: List[Union[bytes, memoryview]] = []
        if added:
            rest = data[data.rfind(b"\n") + 1 :]
            lines = memoryview(marked)[: len(marked) - len(self._whole) - len(rest)]
            first = data.index(b"\n") + 1 if len(data) > _COPIED_BYTES else len(lines)
            out = [b"".join((self._whole, self.pending, lines[:first])), lines[first:]]
            self.lines += added // len(self._whole)
            self.pending = rest
        else:
            self.pending += data
        if len(self.pending) >= MAX_PAYLOAD_BYTES:
            out.append(self.flush())
        return out

    def flush(self) -> bytes:
        """Records for the unfinished line, so that a progress bar or a prompt is shown."""
        data, self.pending = self.pending, b""
        pieces = [data[i : i + MAX_PAYLOAD_BYTES] for i in range(0, len(data), MAX_PAYLOAD_BYTES)]
        self.pieces += len(pieces)
        return b"".join(self._part + piece + b"\n" for piece in pieces)


class Decoder:
    """Turns the bytes of one node's stream, cut anywhere, back into records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that `data` completes, in order."""
        lines: List[bytes] = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_PENDING_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return map(parse, lines)

    def close(self) -> Iterator[Record]:
        """The unfinished line at the end of the stream, if any."""
        rest, self._rest = self._rest, b""
        return iter([parse(rest)] if rest else [])


def parse(line: bytes) -> Record:
    """The record in one line, which has no newline."""
    match = RECORD.match(line)
    if match:
        node, rank, other_node, other_rank, mark, more = match.groups()
        return Output(int(node or other_node), int(rank or other_rank), mark == b"!", line[match.end() :], more != b"+")
    if line.startswith(b'{"event":'):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return Foreign(line)
        if isinstance(fields, dict) and isinstance(fields.get("event"), str):
            return Event(fields.pop("event"), fields)
    return Foreign(line)
