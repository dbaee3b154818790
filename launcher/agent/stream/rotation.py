"""Limits the output of each rank: the first half goes into the stream, of the rest only the latest lines are kept.

Until the worker exits, those are in two files per pipe, `latest/RANK.stdout.1` and the newer `.2`. Then they follow in
the stream, after the number of missing lines. Only the writer's thread calls this.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Union

from .sink import Item, Sink, reason_of

_LEAST_TAIL_BYTES = 64 * 1024
"""At least this much of the end of a worker's output is kept, however much its rank has written before."""

_BLOCK_BYTES = 1024 * 1024
Lose = Callable[[bytes, int, Optional[OSError]], None]


class Rotation:
    """The output of one node's ranks, with its limit."""

    def __init__(self, sink: Sink, directory: str, limit_bytes: Optional[int]) -> None:
        """`limit_bytes`: for each rank; None: no limit."""
        self._sink, self._is_limited, self._limit = sink, limit_bytes is not None, limit_bytes or 0
        self._directory = os.path.join(directory, "latest")
        self._latest: Dict[bytes, Latest] = {}
        self._written: Dict[int, int] = {}
        """How many bytes of each rank are in the stream."""

    def begin(self) -> None:
        """Remove the files of an earlier attempt."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                os.remove(os.path.join(self._directory, name))

    def put(self, items: Sequence[Item]) -> None:
        """Write the items to the stream, except those above a rank's limit."""
        into: List[Item] = []
        for item in items:
            if item.tag and not item.data:  # its worker has exited
                self._sink.put(into)
                into = []
                self._end(item.tag, item.rank)
            elif item.tag and self._is_limited:
                self._sort(item, into)
            else:
                into.append(item)
        self._sink.put(into)

    def _sort(self, item: Item, into: List[Item]) -> None:
        written = self._written.get(item.rank, 0)
        if written < self._limit // 2:
            into.append(item)
            written = self._written[item.rank] = written + len(item.data)
            if written >= self._limit // 2:
                half = (
                    f"rank {item.rank} has written {human(self._limit // 2)}: "
                    "of the rest, only the latest lines are kept"
                )
                into.append(
                    self._sink.warning(f"{half}, and shown when its worker exits (--log-limit {human(self._limit)})")
                )
            return
        if item.tag not in self._latest:
            name = f"{item.rank}.{'stdout' if item.tag.endswith(b'|') else 'stderr'}"
            self._latest[item.tag] = Latest(
                os.path.join(self._directory, name), self._limit // 16, item.tag, self._lose
            )
        self._latest[item.tag].add(item)

    def _end(self, tag: bytes, rank: int) -> None:
        """Write the latest lines to the stream, within what is left of the limit."""
        latest = self._latest.pop(tag, None)
        for item in latest.take(max(_LEAST_TAIL_BYTES, (self._limit - self._written[rank]) // 4)) if latest else ():
            self._written[rank] += len(item.data)
            self._sink.put([item])

    def _lose(self, tag: bytes, lines: int, problem: Optional[OSError]) -> None:
        reason = reason_of(problem) if problem else f"the limit for each rank is {human(self._limit)} (--log-limit)"
        self._sink.lose(tag, lines, reason)


class Latest:
    """The latest lines of one pipe, in two files: the newer one replaces the older one when it is full."""

    def __init__(self, path: str, size: int, tag: bytes, lose: Lose) -> None:
        self._older, self._newer = path + ".1", path + ".2"
        self._size, self._tag, self._lose = size, tag, lose
        self._fd: Optional[int] = None
        self._bytes = 0
        self._lines = [0, 0]
        self._missing = self._told = 0

    def add(self, item: Item) -> None:
        """Keep these lines, in place of the oldest ones."""
        if self._bytes >= self._size:
            self._leave_out(self._lines[0])
            self._close()
            self._bytes, self._lines = 0, [self._lines[1], 0]
            with contextlib.suppress(OSError):
                os.replace(self._newer, self._older)
        try:
            self._write(item.data)
        except OSError as error:
            self._lose(self._tag, item.lines(), error)
        else:
            self._bytes += len(item.data)
            self._lines[1] += item.lines()

    def take(self, room: int) -> Iterator[Item]:
        """Take out the latest lines, at most `room` bytes, after reporting the number of missing ones."""
        self._close()
        sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in (self._older, self._newer)]
        skip = max(0, sum(sizes) - room)
        for path in (self._older, self._newer):
            for block in _blocks(path, self._tag):
                cut = bytes(block.data).find(b"\n", skip - 1) + 1 if 0 < skip <= len(block.data) else 0
                if skip > len(block.data):
                    cut = len(block.data)
                skip = max(0, skip - len(block.data))
                self._missing += Item(block.data[:cut], self._tag).lines()
                if cut < len(block.data):
                    self._tell()
                    yield block._replace(data=block.data[cut:])
        self._tell()
        for path in (self._older, self._newer):
            with contextlib.suppress(OSError):
                os.remove(path)

    def _write(self, data: Union[bytes, memoryview]) -> None:
        if self._fd is None:
            os.makedirs(os.path.dirname(self._newer), exist_ok=True)
            self._fd = os.open(self._newer, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        if (done := os.write(self._fd, data)) < len(data):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - done)  # leave no partial line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _leave_out(self, lines: int) -> None:
        """Count dropped lines, and report them each time their number has doubled."""
        self._missing += lines
        if self._missing >= 2 * self._told:
            self._tell()

    def _tell(self) -> None:
        if self._missing > self._told:
            self._lose(self._tag, self._missing - self._told, None)
            self._told = self._missing

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def human(size: int) -> str:
    """A size as in the setting: `500KB`, `4GB`."""
    for unit, each in (("GB", 10**9), ("MB", 10**6)):
        if size >= each:
            return f"{size / each:g}{unit}"
    return f"{size / 1000:g}KB"


def _blocks(path: str, tag: bytes) -> Iterator[Item]:
    """A file in blocks of whole records."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        rest = b""
        while data := file.read(_BLOCK_BYTES):
            data = rest + data
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            yield Item(data[:end], tag)
