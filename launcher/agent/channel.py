"""Messages between the processes of one node: JSON over a Unix socket that keeps message borders, with file descriptors."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict, List, Optional, Sequence, Tuple

Message = Dict[str, Any]
_MAX_BYTES = 128 * 1024
_MAX_FDS = 4


class Channel:
    """One end of a pair; `receive` gives None when the other end is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> Tuple[Channel, Channel]:
        """Two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """The end that this process inherited."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock)

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send one message; False when nobody is there to read it."""
        data = json.dumps(message).encode()
        try:
            if fds:
                socket.send_fds(self._sock, [data], list(fds))
            else:
                self._sock.send(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> Tuple[Optional[Message], List[int]]:
        """The next message and its descriptors; waits for it."""
        try:
            data, fds, _flags, _address = socket.recv_fds(self._sock, _MAX_BYTES, _MAX_FDS)
        except ConnectionResetError:
            return None, []
        return (json.loads(data), list(fds)) if data else (None, [])

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Whether `receive` would return at once, waiting up to `timeout_s` for that."""
        import select

        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Close this end."""
        self._sock.close()
