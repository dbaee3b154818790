"""The agent stream: the one format in which every backend reports. `docs/agent-stream.md` is its reference.

A stream is a sequence of lines of three kinds:

    {"event": "worker_started", ...}     an event: JSON in ASCII, with `time` and `node`
    1.5| text                            a line that rank 5 on node 1 wrote to stdout
    1.5! text                            the same for stderr

A `+` in place of the blank means that the line continues in the next record of that rank and stream: a progress bar, a
prompt, or a line longer than one record. Payload bytes are unchanged; only the newline has a meaning. Any other line is
foreign: something between agent and reader (a scheduler, ssh) wrote it.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Union

VERSION = 1

MAX_PAYLOAD_BYTES = 64 * 1024
"""A line longer than this is sent in several records."""

MAX_PENDING_BYTES = 1024 * 1024
"""The decoder never holds more than this of an unfinished line; no event is longer."""

NOT_NEEDED = "this node is not needed: the run ended before it joined"
"""The warning of a node that joined after the others had finished."""

STDOUT, STDERR = "stdout", "stderr"
_MARKS = {STDOUT: "|", STDERR: "!"}
_RECORD = re.compile(rb"(\d{1,9})\.(\d{1,9})([|!])([ +])", re.ASCII)


def is_record(line: bytes) -> bool:
    """Whether this is a worker's line in the stream."""
    return _RECORD.match(line) is not None


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
        """Prefix of its records."""

        self._whole, self._part = self.tag + b" ", self.tag + b"+"
        self.pending = b""
        self.lines = 0
        """How many lines were completed."""

    def feed(self, data: bytes) -> bytes:
        """Records for all lines that `data` completes; what follows the last newline waits in `pending`."""
        data = self.pending + data if self.pending else data
        end = data.rfind(b"\n")
        out = b""
        if end >= 0:
            out = self._whole + data[:end].replace(b"\n", b"\n" + self._whole) + b"\n"
            self.lines += (len(out) - end - 1) // len(self._whole)
        self.pending = data[end + 1 :]
        if len(self.pending) >= MAX_PAYLOAD_BYTES:
            out += self.flush()
        return out

    def flush(self) -> bytes:
        """Records for the unfinished line, so that a progress bar or a prompt is shown."""
        data, self.pending = self.pending, b""
        pieces = (data[i : i + MAX_PAYLOAD_BYTES] for i in range(0, len(data), MAX_PAYLOAD_BYTES))
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
    match = _RECORD.match(line)
    if match:
        node, rank, mark, more = match.groups()
        return Output(int(node), int(rank), mark == b"!", line[match.end() :], more == b" ")
    if line.startswith(b'{"event":'):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return Foreign(line)
        if isinstance(fields, dict) and isinstance(fields.get("event"), str):
            return Event(fields.pop("event"), fields)
    return Foreign(line)
