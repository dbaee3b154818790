"""Parses what a host sends of a node's stream: of any size, split anywhere, and validated, as hosts are untrusted.

The frames are those of `launcher.agent.ssh.stream`, after a line that starts with a mark; login files print before it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from launcher.agent.ssh.calls import ANSWER

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = b"\n" + ANSWER.encode()
_LINE_BYTES = 1 << 20
"""Far more than a frame's own line has: two texts of a few kilobytes at an agent's end."""

_NOISE_BYTES = 16 << 20
"""More than any login file prints."""

_TEXTS = ("message", "stderr", "last_words")


class FrameError(Exception):
    """Data that no agent sends."""


class Frames:
    """The frames of one connection. Never buffers more than a line."""

    def __init__(self) -> None:
        self.answered = False
        """Whether the host has begun to answer."""

        self._data = b""
        self._noise = 0
        self._left = 0
        """Bytes of the stream that are still to come in this frame."""

    def feed(self, data: bytes) -> Iterator[bytes | dict[str, str] | None]:
        """Pieces of the stream; a dict: how the agent ended; None: it runs, and all was sent. Raises `FrameError`."""
        if not self.answered:
            data = self._begin(data)
        while data:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                yield piece
                continue
            line, end, data = data.partition(b"\n")
            self._data += line
            if len(self._data) > _LINE_BYTES:
                raise FrameError(f"a line of more than {_LINE_BYTES} bytes")
            if not end:
                return
            line, self._data = self._data, b""
            yield from self._frame(line)

    def _begin(self, data: bytes) -> bytes:
        """What follows the answer's line, once that has arrived."""
        self._noise += len(data)
        before, mark, rest = (self._data + data).partition(_MARK)
        line, end, behind = rest.partition(b"\n")
        self._data = mark + line if mark else before[-len(_MARK) :]
        if self._noise > _NOISE_BYTES or len(self._data) > _LINE_BYTES:
            raise FrameError(f"{self._noise >> 20} MB without an answer")
        if not end:
            return b""
        self.answered, self._data = True, b""
        return behind

    def _frame(self, line: bytes) -> Iterator[dict[str, str] | None]:
        kind, _, rest = line.partition(b" ")
        if kind == b"d" and rest.isdigit() and len(rest) < 19:
            self._left = int(rest)
        elif kind == b"e":
            yield _ending(rest)
        elif kind == b"r":
            yield None
        elif kind != b"k":
            raise FrameError(f"{line[:40]!r}")


def _ending(text: bytes) -> dict[str, str]:
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or any(not isinstance(told.get(name, ""), str) for name in _TEXTS):
        raise FrameError(f"{text[:40]!r}")
    return {name: told[name].encode(errors="backslashreplace").decode() for name in _TEXTS if name in told}
