"""The output of a worker's terminal: unchanged to the client, and with plain newlines to the stream."""

from __future__ import annotations

import contextlib
import os
from typing import Optional, Protocol

from ..stream.output import Pipe
from ..stream.tail import Tail
from ..stream.writer import Writer

_OUT_BYTES = 64 * 1024


class Viewer(Protocol):
    """The receiver of the output."""

    @property
    def behind(self) -> bool:
        """Whether the worker must wait for the client."""

    def show(self, data: bytes) -> None:
        """Show what the worker has written."""


class Screen(Pipe):
    """The agent's end of a pty: output goes unchanged to the client, and as lines of text to the stream."""

    def __init__(self, fd: int, node: int, rank: int, stream: str, *, kept: bool) -> None:
        """`kept`: this is the worker's output, not only the echo of its input."""
        super().__init__(fd, node, rank, stream)
        self.terminal: Optional[Viewer] = None
        self.tail = Tail() if kept else None  # tracebacks go there, too
        self.half = b""
        """A carriage return that may be the first half of a line end, held back until what follows decides."""

        self._kept = kept

    @property
    def held(self) -> bool:
        """Whether the worker must wait for the client."""
        return self.terminal is not None and self.terminal.behind

    def keep(self, data: bytes, writer: Writer) -> None:
        """Process what was read; empty at the end."""
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
        """The data, with the rest of a line end of which only the first half was read.

        The kernel writes both halves at once: if there is no more data now, it was a lone carriage return.
        """
        with contextlib.suppress(OSError):  # no more data now, or ever
            while data.endswith(b"\r") and len(data) < 2 * _OUT_BYTES and (more := os.read(self.fd, _OUT_BYTES)):
                data += more
        return data
