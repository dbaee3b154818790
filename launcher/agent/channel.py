"""Messages between the processes of one node: length-prefixed JSON and file descriptors over a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
from typing import Any, Dict, Generic, List, Optional, Sequence, Tuple, TypeVar

Message = Dict[str, Any]
Sent = TypeVar("Sent")
Received = TypeVar("Received")
_LENGTH = struct.Struct("!Q")
_READ_BYTES = 1 << 20
_MAX_FDS = 4


class Channel(Generic[Sent, Received]):
    """One end of a pair, with one message type per direction; `receive` returns None once the other end is closed."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        """The received part of the next message; never more than that, so poll and select see the one after it."""

        self._fds: List[int] = []
        self._ended = False

    @classmethod
    def pair(cls) -> Tuple[Channel[Sent, Received], Channel[Received, Sent]]:
        """Two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), Channel(other)

    @classmethod
    def from_fd(cls, fd: int) -> Channel[Sent, Received]:
        """The end that this process inherited."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock)

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._sock.fileno()

    def send(self, message: Sent, fds: Sequence[int] = ()) -> bool:
        """Send one message; False if the other end is closed."""
        data = json.dumps(message).encode()
        data = _LENGTH.pack(len(data)) + data
        try:
            sent = socket.send_fds(self._sock, [data], list(fds)) if fds else 0  # they travel with the first byte
            self._sock.sendall(memoryview(data)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> Tuple[Optional[Received], List[int]]:
        """Wait for the next message and its descriptors."""
        while self._missing():
            self._read()
        data, fds = self._data[_LENGTH.size :], self._fds
        if self._ended:
            return None, []
        self._data, self._fds = bytearray(), []
        return json.loads(data), fds

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` for a complete message; returns whether `receive` would return at once."""
        import select
        import time

        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        limit = time.monotonic() + timeout_s
        while self._missing():
            if not poll.poll(max(0.0, limit - time.monotonic()) * 1000):
                return False
            self._read()
        return True

    def _missing(self) -> int:
        """How many bytes of the message, or of its length, are missing; also 0 at the end of the stream."""
        if self._ended:
            return 0
        need = _LENGTH.size
        if len(self._data) >= need:
            need += _LENGTH.unpack_from(self._data)[0]
        return need - len(self._data)

    def _read(self) -> None:
        """Wait for a part of what is missing and take it."""
        try:
            data, fds, flags, _address = socket.recv_fds(self._sock, min(self._missing(), _READ_BYTES), _MAX_FDS)
        except ConnectionResetError:
            data, fds, flags = b"", [], 0
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no file descriptors are left for a worker's output")
        self._fds += fds
        self._data += data
        self._ended = not data

    def end(self) -> None:
        """Send nothing any more: the other end hears of it at once, and not only when this process is gone."""
        with contextlib.suppress(OSError):  # the other end is gone
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()
