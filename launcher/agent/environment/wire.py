"""A connection between two nodes that bring an environment; both prove first that they know the run's key."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from typing import Any, Dict, Tuple

from ..named_tuple import NamedTuple
from ..network import routes, secure
from ..store.interface import watch_host

Message = Dict[str, Any]
_LABEL = " environment"
_HEAD = struct.Struct("!I")
_PIECE = struct.Struct("!II")
_PROVE_S = 20.0
_MAX_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20


class Limits(NamedTuple):
    """How long to wait for other nodes, in seconds."""

    host_s: float
    """How long another node's host may not answer."""

    wait_s: float
    """How long nodes may take to join, and node 0 to list the environment."""

    patience_s: float = 120.0
    """How long the next piece may take: a file server may be slow."""


class LostError(OSError):
    """The other end is gone, silent, or not a node of the run."""


class Wire:
    """Messages with a MAC each; pieces without, as their digests are known."""

    def __init__(self, sock: socket.socket, session: secure.Session) -> None:
        self.sock, self._session = sock, session

    @classmethod
    def to(cls, address: str, port: int, key: str, host_s: float) -> Wire:
        """Connect. Raises `LostError`."""
        try:
            sock = routes.connect(address, port, _PROVE_S)
        except OSError as error:
            raise LostError(f"{address}:{port}: {error}") from error
        try:
            watch_host(sock, host_s)
            theirs = _read(sock, secure.NONCE_BYTES, _PROVE_S)
            own = secure.nonce()
            session = secure.Session(key + _LABEL, secure.CLIENT, theirs, own)
            sock.sendall(own + session.proof())
            session.check_peer(_read(sock, secure.MAC_BYTES, _PROVE_S))
        except (OSError, ValueError) as error:
            sock.close()
            raise LostError(f"{address}:{port}: {error}") from error
        return cls(sock, session)

    @classmethod
    def accepted(cls, sock: socket.socket, key: str, host_s: float) -> Wire:
        """Take a connection. Raises `LostError`; closes the socket of a stranger."""
        try:
            watch_host(sock, host_s)
            own = secure.nonce()
            sock.sendall(own)
            hello = _read(sock, secure.NONCE_BYTES + secure.MAC_BYTES, _PROVE_S)
            session = secure.Session(key + _LABEL, secure.SERVER, own, hello[: secure.NONCE_BYTES])
            session.check_peer(hello[secure.NONCE_BYTES :])
            sock.sendall(session.proof())
        except (OSError, ValueError) as error:
            sock.close()
            raise LostError(str(error)) from error
        return cls(sock, session)

    def send(self, **message: Any) -> None:
        """Send a message. Raises `LostError`."""
        text = json.dumps(message).encode("ascii")
        try:
            self.sock.settimeout(None)
            self.sock.sendall(_HEAD.pack(len(text)) + self._session.seal(text) + text)
        except OSError as error:
            raise LostError(str(error)) from error

    def receive(self, limit_s: float) -> Message:
        """The next message. Raises `LostError`."""
        try:
            head = _read(self.sock, _HEAD.size + secure.MAC_BYTES, limit_s)
            (size,) = _HEAD.unpack_from(head)
            if size > _MAX_BYTES:
                raise LostError("a message is too large")
            text = _read(self.sock, size, limit_s)
            self._session.check(head[_HEAD.size :], text)
            return dict(json.loads(text))
        except (OSError, ValueError) as error:
            raise LostError(str(error) or type(error).__name__) from error

    def has_news(self) -> bool:
        """Whether something can be received at once."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def send_data(self, fd: int, offset: int, size: int) -> None:
        """Send a part of a file, as it is on the disk. Raises `LostError`."""
        try:
            self.sock.settimeout(None)
            while size:
                done = os.sendfile(self.sock.fileno(), fd, offset, size)
                if not done:
                    raise LostError("the file is shorter than it was")
                offset, size = offset + done, size - done
        except OSError as error:
            raise LostError(str(error)) from error

    def send_bytes(self, data: bytes) -> None:
        """Send plain bytes. Raises `LostError`."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise LostError(str(error)) from error

    def announce(self, index: int, size: int) -> None:
        """What follows is this piece."""
        self.send_bytes(_PIECE.pack(index, size))

    def announced(self, limit_s: float) -> Tuple[int, int]:
        """Which piece follows, and its size. Raises `LostError`."""
        index, size = _PIECE.unpack(self.data(_PIECE.size, limit_s))
        return index, size

    def data(self, size: int, limit_s: float) -> bytes:
        """The next bytes. Raises `LostError`; `limit_s`: how long nothing may come."""
        try:
            return _read(self.sock, size, limit_s)
        except OSError as error:
            raise LostError(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


def _read(sock: socket.socket, count: int, limit_s: float) -> bytes:
    """Exactly `count` bytes; nothing may come for at most `limit_s`."""
    found = bytearray(count)
    view, at = memoryview(found), 0
    silent = time.monotonic()
    while at < count:
        sock.settimeout(min(routes.LONGEST_S, max(0.001, limit_s - (time.monotonic() - silent))))
        done = sock.recv_into(view[at:], min(count - at, _BLOCK_BYTES))
        if not done:
            raise ConnectionResetError("the connection was closed")
        at, silent = at + done, time.monotonic()
    return bytes(found)
