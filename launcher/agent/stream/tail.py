"""The latest stderr output of a worker: the end, and the start of its last traceback, however long that is."""

from __future__ import annotations

TRACEBACK = b"Traceback (most recent call last):\n"
_END_BYTES = 32 * 1024
_HEAD_BYTES = 16 * 1024


class Tail:
    """Takes bytes in order; `text` is what is kept of them."""

    def __init__(self) -> None:
        self._end = b""
        self._head = b""

    def add(self, data: bytes) -> None:
        """Keep what matters of the data."""
        known = self._end + data
        begin = known.rfind(TRACEBACK)
        if begin >= 0:
            self._head = known[begin : begin + _HEAD_BYTES]
        elif self._head and len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        self._end = known[-_END_BYTES:]

    @property
    def text(self) -> bytes:
        """The end, preceded by the start of the last traceback if the end does not contain it."""
        return self._end if TRACEBACK in self._end or not self._head else self._head + b"\n" + self._end
