"""What a worker has written to stderr last: the end, and where its last traceback begins, however long that is."""

from __future__ import annotations

TRACEBACK = b"Traceback (most recent call last):\n"
_END_BYTES = 32 * 1024
_HEAD_BYTES = 16 * 1024


class Tail:
    """Bytes go in, in order; `text` is what is kept of them."""

    def __init__(self) -> None:
        self._end = b""
        self._head = b""

    def add(self, data: bytes) -> None:
        """Remember what matters of it."""
        known = self._end + data
        begin = known.rfind(TRACEBACK)
        if begin >= 0:
            self._head = known[begin : begin + _HEAD_BYTES]
        elif self._head and len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        self._end = known[-_END_BYTES:]

    @property
    def text(self) -> bytes:
        """The end, behind the beginning of the last traceback where that is not in it."""
        return self._end if TRACEBACK in self._end or not self._head else self._head + b"\n" + self._end
