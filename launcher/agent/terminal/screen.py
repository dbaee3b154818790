"""What a worker writes to its terminal: to the client as it is, and into the stream with the line ends of a file."""

from __future__ import annotations

import contextlib
import os
from typing import Optional, Protocol

from ..stream.output import Pipe
from ..stream.tail import Tail
from ..stream.writer import Writer

_OUT_BYTES = 64 * 1024


class Viewer(Protocol):
    """Who is shown it."""

    @property
    def behind(self) -> bool:
        """Whether the worker is to wait for the client."""

    def show(self, data: bytes) -> None:
        """The worker has written that."""


class Screen(Pipe):
    """The agent's end of a pty: what the worker writes goes to the client as it is, and into the stream as lines of text."""

    def __init__(self, fd: int, node: int, rank: int, stream: str, *, kept: bool) -> None:
        """`kept`: it is the worker's output; else only the echo of what is typed."""
        super().__init__(fd, node, rank, stream)
        self.terminal: Optional[Viewer] = None
        self.tail = Tail() if kept else None  # its tracebacks are there, too
        self.half = b""
        """A carriage return that may be the first half of a line end: the stream has it later or never, as the end tells."""

        self._kept = kept

    @property
    def held(self) -> bool:
        """Whether the worker is to wait for the client."""
        return self.terminal is not None and self.terminal.behind

    def keep(self, data: bytes, writer: Writer) -> None:
        """What was read; none at the end."""
        data = self._whole(data)
        if self.terminal is not None and data:
            self.terminal.show(data)
        if not self._kept:
            return
        text = self.half + data
        self.half = b"\r" if data and text.endswith(b"\r") else b""
        text = text[: len(text) - len(self.half)].replace(b"\r\n", b"\n")
        if text:
            super().keep(text, writer)

    def _whole(self, data: bytes) -> bytes:
        """With the rest of a line end of which only the first half was read.

        The kernel writes both at once, so where it has no more now, that was a carriage return by itself.
        """
        with contextlib.suppress(OSError):  # there is no more now, or never
            while data.endswith(b"\r") and len(data) < 2 * _OUT_BYTES and (more := os.read(self.fd, _OUT_BYTES)):
                data += more
        return data
