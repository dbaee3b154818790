"""The agent's side of its stream: one writer, and the pipes of the workers that go into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Dict, List, Optional

from .protocol import STDERR, STDOUT, LineTagger, encode_event
from .tail import Tail

_READ_BYTES = 64 * 1024
_PIPE_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031  # fcntl has a name for it only from Python 3.10 on
PART_AFTER_S = 0.1
"""A piece of a line that has waited so long is sent without its newline."""


class StreamLostError(OSError):
    """The agent stream cannot be written: the disk is full, or its reader is gone."""


class Writer:
    """Writes whole lines to the agent stream, in blocks."""

    def __init__(self, fd: int, node: int, last_words: Optional[str] = None, attempt: int = 0) -> None:
        self.node = node
        self._attempt = {"attempt": attempt} if attempt else {}
        self._fd = fd
        self._blocks: List[bytes] = []
        self._last_words = last_words
        if last_words:
            # Room for one message, taken while there is some: a full disk can then still be told.
            with contextlib.suppress(OSError), open(last_words, "wb") as file:
                file.write(b" " * 1024 + b"\n")

    def event(self, name: str, **fields: Any) -> None:
        """Add an event and write all that is waiting."""
        self.add(encode_event(name, self.node, **self._attempt, **fields))
        self.flush()

    def add(self, block: bytes) -> None:
        """Add whole lines, to be written by the next `flush`."""
        if block:
            self._blocks.append(block)

    def flush(self) -> None:
        """Write what is waiting; raises `StreamLostError`."""
        data = memoryview(b"".join(self._blocks))
        self._blocks.clear()
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                self.say_last(f"the agent stream cannot be written: {error.strerror}")
                raise StreamLostError(error.errno, error.strerror) from error

    def say_last(self, message: str) -> None:
        """Leave a message where there is room even on a full disk; the launcher looks there when `done` is missing."""
        if self._last_words:
            with contextlib.suppress(OSError), open(self._last_words, "r+b") as file:
                file.write(message.encode("ascii", "replace")[:1000].ljust(1000))


class Pipe:
    """One worker's stdout or stderr."""

    def __init__(self, fd: int, node: int, rank: int, stream: str) -> None:
        self.fd = fd
        self.ended = False
        self.tail = Tail() if stream == STDERR else None
        """The last bytes of stderr, for the traceback in them."""

        self._tagger = LineTagger(node, rank, stream)
        self._pending_since: Optional[float] = None
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # more than the user may have; the default does as well
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self, writer: Writer) -> bool:
        """Take what is there, up to one block; False when there is nothing more now, or ever (then `ended` is set)."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            writer.add(self._tagger.flush())
            self._pending_since = None
            self.ended = True
            return False
        if self.tail is not None:
            self.tail.add(data)
        writer.add(self._tagger.feed(data))
        self._pending_since = (self._pending_since or time.monotonic()) if self._tagger.pending else None
        return True

    def flush_part(self, writer: Writer, now: float) -> None:
        """Send the piece of a line that has waited long enough."""
        if self._pending_since is not None and now - self._pending_since >= PART_AFTER_S:
            writer.add(self._tagger.flush())
            self._pending_since = None

    @property
    def waits(self) -> bool:
        """Whether a piece of a line is waiting."""
        return self._pending_since is not None


def pipes(fds: List[int], node: int, rank: int) -> Dict[str, Pipe]:
    """A worker's two pipes."""
    return {name: Pipe(fd, node, rank, name) for name, fd in zip((STDOUT, STDERR), fds)}
