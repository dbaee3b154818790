"""The agent stream for people, as `kubectl logs` shows it: with everything in it, so `decode` restores the stream.

    distlaunch: worker_started rank=5 local_rank=1 pid=27 round=0 node=1 time=1763634000.123
    [5] text                         a line of rank 5; without the tag, of the only rank of a run

Two characters at the end of a line, each a space or a tab, hold what people need not see: whether it is from stderr,
and whether it continues. They are left out after a tag, if the line is from stdout, whole, and ends with neither.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterator, Match, Tuple

from ..protocol import is_record, line_mark

_PREFIX = b"distlaunch: "
_MARKS = {b"| ": b"  ", b"|+": b" \t", b"! ": b"\t ", b"!+": b"\t\t"}
_WHOLE = b"| "
_KINDS = {mark: kind for kind, mark in _MARKS.items()}
_RECORD = re.compile(rb"(?m)^(?:\[\d{1,9}:(\d{1,9})\] |\d{1,9}\.(\d{1,9})([|!][ +]))(.*)$")
_EVENT = re.compile(rb"(?m)^(\{.*\n)")
_TAG = re.compile(rb"\[(\d{1,9})\] ")
_WORD = re.compile(r"(?!(?:true|false|null|NaN|Infinity)\b)[A-Za-z_/][\w./:@+-]*", re.ASCII)
_KEY = re.compile(r" ([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Encoder:
    """Turns whole lines of the stream into as many lines for people."""

    def __init__(self) -> None:
        self._alone = False
        """Whether the run has a single rank, whose lines need no tag."""

    def encode(self, data: bytes) -> bytes:
        """The same lines for people."""
        parts = _EVENT.split(data)  # events are the odd ones
        return b"".join(self._event(part) if number % 2 else self._lines(part) for number, part in enumerate(parts))

    def _event(self, line: bytes) -> bytes:
        fields = json.loads(line)
        if fields["event"] == "rendezvous":
            self._alone = fields.get("world_size") == 1
        name, when, node = fields.pop("event"), fields.pop("time"), fields.pop("node")
        tokens = [f"{key}={_token(value)}" for key, value in _flat({**fields, "node": node, "time": when})]
        return _PREFIX + " ".join([name, *tokens]).encode("ascii") + b"\n"

    def _lines(self, data: bytes) -> bytes:
        return _RECORD.sub(_untagged if self._alone else _tagged, data)


def decode(line: bytes, node: int) -> bytes:
    """The line of that node's stream; unchanged if it is one already, or if no agent has written it."""
    tag = _TAG.match(line)
    rank, text = (tag[1], line[tag.end() :]) if tag else (b"0", line)
    kind = _KINDS.get(text[-2:])
    if kind is not None and not is_record(line):
        return _record(node, rank, kind, text[:-2])
    if tag and text[-1:] not in (b" ", b"\t"):
        return _record(node, rank, _WHOLE, text)
    return _event_of(line) if line.startswith(_PREFIX) else line


def _record(node: int, rank: bytes, kind: bytes, text: bytes) -> bytes:
    if kind == _WHOLE:
        return line_mark(node, int(rank)) + text
    return b"%d.%b%b%b" % (node, rank, kind, text)


def _tagged(record: Match[bytes]) -> bytes:
    rank, kind, text = record[1] or record[2], record[3] or _WHOLE, record[4]
    return b"[%b] %b%b" % (rank, text, b"" if kind == _WHOLE and text[-1:] not in (b" ", b"\t") else _MARKS[kind])


def _untagged(record: Match[bytes]) -> bytes:
    """The line as the worker wrote it, unless it looks like another kind of line."""
    text = record[4]
    return _tagged(record) if _TAG.match(text) or is_record(text) else text + _MARKS[record[3] or _WHOLE]


def _flat(fields: Dict[str, Any], above: str = "") -> Iterator[Tuple[str, Any]]:
    """The fields, and those of objects in them under `NAME.FIELD`."""
    for key, value in fields.items():
        if isinstance(value, dict) and value and all(map(_NAME.fullmatch, value)):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _token(value: Any) -> str:
    """A value as JSON; a text that is a single word without its quotes."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value, separators=(",", ":"))


def _event_of(line: bytes) -> bytes:
    """The event of such a line; the line itself if it is none."""
    try:
        text = line.decode("ascii")
        name = _NAME.match(text, len(_PREFIX))
        if name is None:
            return line
        fields = _fields_of(text, name.end())
        event = {"event": name[0], "time": fields.pop("time"), "node": fields.pop("node"), **fields}
        return json.dumps(event, separators=(",", ":")).encode("ascii")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return line


def _fields_of(text: str, position: int) -> Dict[str, Any]:
    """The fields from that position to the end. Raises `ValueError`."""
    fields: Dict[str, Any] = {}
    decoder = json.JSONDecoder()
    while position < len(text):
        key = _KEY.match(text, position)
        if key is None:
            raise ValueError(text)
        word = _WORD.match(text, key.end())
        value, position = (word[0], word.end()) if word else decoder.raw_decode(text, key.end())
        *above, last = key[1].split(".")
        inner = fields
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return fields
