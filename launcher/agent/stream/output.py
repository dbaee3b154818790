"""The workers' output pipes, which feed the agent stream."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Dict, List, Optional

from ..protocol import STDERR, STDOUT, LineTagger
from .sink import Item
from .tail import Tail
from .traces import Traces
from .writer import Writer

_PIPE_BYTES = 256 * 1024
_READ_BYTES = _PIPE_BYTES  # all that a worker may have written while others were read
_F_SETPIPE_SZ = 1031  # fcntl has a name for it only from Python 3.10 on
PART_AFTER_S = 0.1
"""A partial line that has waited this long is sent without its newline."""


class Pipe:
    """One worker's stdout or stderr."""

    def __init__(self, fd: int, node: int, rank: int, stream: str) -> None:
        self.fd = fd
        self.rank = rank
        self.ended = False
        self.begun = False
        """Whether anything was read."""

        self.tail = Tail() if stream == STDERR else None
        """The last bytes of stderr, for the traceback in them."""

        self.traces = Traces()
        self._tagger = LineTagger(node, rank, stream)
        self.tag = self._tagger.tag
        self._pending_since: Optional[float] = None
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # more than the user's limit; the default works as well
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self, writer: Writer) -> bool:
        """Read up to one block; False if there is no more data now, or ever (then `ended` is set)."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # how a pty reports that no worker has it open any more
            data = b""
        self.keep(data, writer)
        if not data:
            writer.add(Item(self._tagger.flush(), self.tag))
            self._pending_since = None
            self.ended = True
        return bool(data)

    def keep(self, data: bytes, writer: Writer) -> None:
        """Process what was read; empty at the end."""
        self.begun = self.begun or bool(data)
        if self.tail is not None:
            self.tail.add(data)
        before, pieces, lines = self._tagger.pending, self._tagger.pieces, self._tagger.lines
        records = self._tagger.records(data)
        self.traces.add(before, data)
        alike = self._tagger.pieces == pieces
        for each in records:
            writer.add(Item(each, self.tag, alike))
        if not self._tagger.pending:
            self._pending_since = None
        elif self._pending_since is None or self._tagger.lines > lines:  # of another line than before
            self._pending_since = time.monotonic()

    def flush_part(self, writer: Writer, now: float) -> None:
        """Send a partial line that has waited long enough."""
        if self._pending_since is not None and now - self._pending_since >= PART_AFTER_S:
            writer.add(Item(self._tagger.flush(), self.tag))
            self._pending_since = None

    @property
    def lines(self) -> int:
        """How many lines were read."""
        return self._tagger.lines

    @property
    def held(self) -> bool:
        """Whether it must not be read now, although the stream accepts more."""
        return False

    @property
    def waits(self) -> bool:
        """Whether a partial line is waiting."""
        return self._pending_since is not None


def pipes(fds: List[int], node: int, rank: int) -> Dict[str, Pipe]:
    """A worker's two pipes."""
    return {name: Pipe(fd, node, rank, name) for name, fd in zip((STDOUT, STDERR), fds)}
