"""Frames on a non-blocking Unix socket, for a worker's terminal: between its agent and the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from typing import Any, List

from ..channel import Message

LENGTH = struct.Struct("!Q")
_READ_BYTES = 64 * 1024
_LONGEST_BYTES = 8 << 20


class Connection:
    """Frames on a connected, non-blocking socket; the other end may be the agent or the client."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._read, self._unsent = bytearray(), bytearray()
        self.ended = False
        self.deaf = False
        """Whether the other end reads no more; what it has already sent can still be received."""

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    @property
    def waiting(self) -> int:
        """The number of bytes not sent yet."""
        return len(self._unsent)

    def send(self, **message: Any) -> None:
        """Send a message, or keep it until the socket accepts it; if the other end has closed, it is dropped."""
        data = json.dumps(message).encode("ascii")
        self._unsent += LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts now."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self.deaf = True
            self._unsent.clear()

    def receive(self) -> List[Message]:
        """The messages that have arrived; sets `ended` if no more will."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.ended = self.ended or not data
        self._read += data
        found = []
        while len(self._read) >= LENGTH.size:
            size = LENGTH.unpack_from(self._read)[0]
            if size > _LONGEST_BYTES:
                self.ended = True
                break
            if len(self._read) < LENGTH.size + size:
                break
            found.append(json.loads(self._read[LENGTH.size : LENGTH.size + size]))
            del self._read[: LENGTH.size + size]
        return found

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def listen(path: str) -> socket.socket:
    """Listen at that path, for this user only."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    sock.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}")  # a socket's path is limited to 107 bytes
    os.close(directory)
    os.chmod(path, 0o600)
    sock.listen(1)
    sock.setblocking(False)
    return sock
