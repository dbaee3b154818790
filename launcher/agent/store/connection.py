"""One connection to the run's store, seen from the server: no request is parsed before the client's proof."""

from __future__ import annotations

import json
import selectors
import socket
from typing import Any, Callable, Optional

from ..network import secure
from .interface import LENGTH, MAX_BYTES, UNREACHABLE

_READ_BYTES = 1 << 16
_HEAD = LENGTH.size + secure.MAC_BYTES
_HELLO = secure.NONCE_BYTES + secure.MAC_BYTES


class Connection:
    """Starts with our nonce; then come the client's nonce and proof, our proof, and requests."""

    def __init__(self, sock: socket.socket, peer: str, key: str) -> None:
        sock.setblocking(False)
        self.sock, self.peer = sock, peer
        self.open = True
        self.events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self.forged = False
        """Whether the data does not come from a client that knows the key."""

        self._key, self._nonce = key, secure.nonce()
        self._session: Optional[secure.Session] = None
        self._received, self._to_send = bytearray(), bytearray(self._nonce)
        self._left = ("", "", "")
        """The key from `leave`, its value if the connection closes, and its value if the host stops answering."""

        self._unreachable = False

    @property
    def proved(self) -> bool:
        """Whether the client has proved that it knows the key."""
        return self._session is not None

    def step(self, events: int, answer: Callable[..., Any]) -> bool:
        """Read and write without blocking; False if the connection is over. Garbage may raise any exception."""
        try:
            if events & selectors.EVENT_READ:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    return self._ended()
                self._received += data
                self._answer_all(answer)
            if self._to_send:
                del self._to_send[: self.sock.send(self._to_send)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._unreachable = error.errno in UNREACHABLE
            return self._ended()
        self.events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._to_send else 0)
        return True

    def _ended(self) -> bool:
        # A client that sent nothing has only checked whether the store is listening.
        self.forged = not self.proved and bool(self._received)
        return False

    def _answer_all(self, answer: Callable[..., Any]) -> None:
        if self._session is None and not self._hear_proof():
            return
        session = self._session
        assert session is not None
        while len(self._received) >= _HEAD:
            (length,) = LENGTH.unpack_from(self._received)
            if length > MAX_BYTES:
                raise secure.ForgedError(length)
            end = _HEAD + length
            if len(self._received) < end:
                return
            request = bytes(self._received[_HEAD:end])
            session.check(bytes(self._received[LENGTH.size : _HEAD]), request)
            del self._received[:end]
            call, *args = json.loads(request)
            if call == "leave":
                self._left = (str(args[0]), str(args[1]), str(args[2]))
            reply = json.dumps(None if call == "leave" else answer(call, *args)).encode()
            self._to_send += LENGTH.pack(len(reply)) + session.seal(reply) + reply

    def _hear_proof(self) -> bool:
        if len(self._received) < _HELLO:
            return False
        if len(self._received) > _HELLO:  # our clients wait for our proof first
            raise secure.ForgedError("more than a proof")
        client_nonce, proof = bytes(self._received[: secure.NONCE_BYTES]), bytes(self._received[secure.NONCE_BYTES :])
        session = secure.Session(self._key, secure.SERVER, self._nonce, client_nonce)
        session.check_peer(proof)
        self._received.clear()
        self._to_send += session.proof()
        self._session = session
        return True

    def close(self, answer: Callable[..., Any]) -> None:
        """Close the connection, and set the key that its client left behind."""
        self.open = False
        self.sock.close()
        key, ended, unreachable = self._left
        if key:
            answer("compare_set", key, "", unreachable if self._unreachable else ended)
