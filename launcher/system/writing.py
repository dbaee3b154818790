"""Writes bytes to streams that may be slow or have no reader, in a thread if the caller must not wait."""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Iterator

    Parts = tuple[bytes | memoryview, ...]

_TO_END = b"\033[K"
"""Erases from the cursor to the end of the line."""

BACKLOG_BYTES = 8 << 20
_PART_BYTES, _QUICK_PART_BYTES = 4096, 1 << 20
"""How much is written at once: a slow reader shows with each part that it still reads, a quick one gets more."""

_QUICK_S = 0.01
_STUCK_S = 1.0
_CLEAR_S = 0.2
_DRAIN_LOOK_S, _DRAIN_LOOK_LATER_S = 0.0001, 0.002


def write_all(fd: int, *parts: bytes | memoryview) -> None:
    """Write all bytes of the parts, which a file takes without a copy. Raises `OSError` if there is no reader."""
    done = 0
    if len(parts) > 1:
        with suppress(BlockingIOError):
            done = os.writev(fd, parts)
        if done == sum(map(len, parts)):
            return
    view = memoryview(b"".join(parts) if len(parts) > 1 else parts[0])[done:]
    while view:
        view = view[write_some(fd, view) :]


def write_some(fd: int, data: bytes | memoryview) -> int:
    """Write as many bytes as fit, waiting for a slow non-blocking pipe or terminal; how many."""
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            import select

            select.select([], [fd], [], 1.0)


def takes(fd: int) -> bool:
    """Whether bytes can be written at once: the terminal is not stopped, and it is being read."""
    import select

    return bool(select.select([], [fd], [], 0)[1])


class LiveLine:
    """A temporary line at the cursor: other output takes its place."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may write, too
        self._drawn_on = -1
        self._drawing = False
        self._open = False
        """Whether the last line of other output is unfinished."""

    def draw(self, fd: int, line: bytes, wanted: Callable[[], bool]) -> None:
        """Draw the line in place of the previous one, if it is still `wanted`."""
        with self._lock:
            self._drawing = True
            try:
                if not self._open and wanted() and takes(fd):
                    write_all(fd, b"\r" + line + _TO_END)
                    self._drawn_on = fd
            finally:
                self._drawing = False

    def clear(self) -> None:
        """Remove the line. Does not wait for a stopped terminal."""
        if self._drawn_on < 0 and not self._drawing:  # a writer to a stopped terminal holds the lock
            return
        if not self._lock.acquire(timeout=_CLEAR_S):
            return
        try:
            if self._drawn_on >= 0 and takes(self._drawn_on):
                fd, self._drawn_on = self._drawn_on, -1
                write_all(fd, b"\r" + _TO_END)
        finally:
            self._lock.release()

    def write(self, fd: int, *parts: bytes | memoryview) -> None:
        """Write other output, in place of the line."""
        with self._lock:
            if self._drawn_on >= 0:
                above, self._drawn_on = self._drawn_on, -1
                write_all(above, b"\r" + _TO_END)
            self._open = parts[-1][-1:] != b"\n"
            write_all(fd, *parts)


class OpenLines:
    """The streams, other than terminals, that end in the middle of a line. Streams to the same file are one."""

    def __init__(self) -> None:
        self._open: set[object] = set()
        self.lock = threading.RLock()  # a signal handler may write, too

    def next(self, fd: int, parts: Parts, *, message: bool) -> Parts:
        """What to write next; a message never continues another's line."""
        if not parts[-1]:
            return parts
        file = _file(fd)
        continues = message and file in self._open and not os.isatty(fd)
        (self._open.discard if parts[-1][-1:] == b"\n" else self._open.add)(file)
        return (b"\n" + b"".join(parts),) if continues else parts

    @contextmanager
    def interrupted(self, fd: int, parts: Parts) -> Iterator[None]:
        """Write the parts within this: its last line is open if Ctrl-C may have cut it.

        A pipe takes short data whole or not at all, and a file takes all.
        """
        try:
            yield
        except KeyboardInterrupt:
            from select import PIPE_BUF

            if sum(map(len, parts)) > PIPE_BUF and not stat.S_ISREG(os.fstat(fd).st_mode):
                self._open.add(_file(fd))
            raise


def _file(fd: int) -> object:
    """What tells the file of this descriptor from others."""
    try:
        found = os.fstat(fd)
    except OSError:
        return fd
    return (found.st_dev, found.st_ino)


class Writer:
    """Writes what it is given in a thread, in order."""

    def __init__(self, stopping: Callable[[], bool], write: Callable[..., object]) -> None:
        """`write` takes a stream and parts; it returns once they are written or have no reader."""
        import queue  # few processes print in the background

        self._write = write
        self._stopping = stopping
        self._queue: queue.SimpleQueue[tuple[int, Parts]]
        self._queue = queue.SimpleQueue()  # safe in signal handlers
        self._given = self._written = 0
        self._lock = threading.RLock()
        self._moved = time.monotonic()
        bytes(BACKLOG_BYTES)  # freed at once: glibc keeps as much from now on, without page faults (mallopt(3))
        self.at = 1
        """The stream that the thread writes to."""

        threading.Thread(target=self._run, name="printing", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        return self._given - self._written

    @property
    def given_up(self) -> bool:
        """Whether we are stopping, and nothing was read for a while."""
        return self._stopping() and time.monotonic() - self._moved > _STUCK_S

    def put(self, fd: int, *parts: bytes | memoryview) -> None:
        """Queue the bytes. Those without a reader are dropped once the backlog is full."""
        size = sum(map(len, parts))  # computed first: a signal handler that runs during this call may change the sum
        with self._lock:
            if self.waiting > BACKLOG_BYTES and self.given_up:
                return
            if not self.waiting:
                self._moved = time.monotonic()
            self._given += size
        self._queue.put((fd, parts))

    def drain(self, limit_s: float = float("inf")) -> None:
        """Wait until all is written, or given up, for at most `limit_s`."""
        limit, pause = time.monotonic() + limit_s, _DRAIN_LOOK_S
        while self.waiting and not self.given_up and time.monotonic() < limit:
            time.sleep(pause)
            pause = min(2 * pause, _DRAIN_LOOK_LATER_S)

    def write_rest(self) -> None:
        """Write here what the thread has not begun and is read, in parts that a stream takes whole if it takes any."""
        from queue import Empty

        while True:
            try:
                fd, parts = self._queue.get_nowait()
            except Empty:  # perhaps the thread writes again
                return
            data = b"".join(parts)
            for start in range(0, len(data), _PART_BYTES):
                if not self.is_stuck(fd):
                    self._write(fd, memoryview(data)[start : start + _PART_BYTES])

    def is_stuck(self, fd: int) -> bool:
        """Whether no one reads the stream."""
        return fd == self.at or os.path.sameopenfile(fd, self.at) or not takes(fd)

    def _run(self) -> None:
        size = _PART_BYTES
        while True:
            fd, parts = self._queue.get()
            if fd < 0:
                return
            self.at, left = fd, sum(map(len, parts))
            if left > size and len(parts) > 1:
                parts = (b"".join(parts),)
            while left:
                now, began = parts if left <= size else (memoryview(parts[0])[:size],), time.monotonic()
                self._write(fd, *now)
                done = min(left, size)
                left -= done
                parts = (memoryview(parts[0])[done:],) if left else ()
                self._written += done
                self._moved = time.monotonic()
                size = min(2 * size, _QUICK_PART_BYTES) if self._moved - began < _QUICK_S else _PART_BYTES
