"""One connection to the run's store, seen from the server: nothing that comes before its proof is more than counted."""

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
    """Begins with our number; then the client's with its proof, our proof, and requests."""

    def __init__(self, sock: socket.socket, peer: str, key: str) -> None:
        sock.setblocking(False)
        self.sock, self.peer = sock, peer
        self.open = True
        self.events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self.forged = False
        """What came is not from one who knows the key."""

        self._key, self._nonce = key, secure.nonce()
        self._session: Optional[secure.Session] = None
        self._received, self._to_send = bytearray(), bytearray(self._nonce)
        self._left = ("", "", "")
        """A key that `leave` has told, its value when the connection ends, and that when its host does not answer any more."""

        self._unreachable = False

    @property
    def proved(self) -> bool:
        """Whether it knows the key."""
        return self._session is not None

    def step(self, events: int, answer: Callable[..., Any]) -> bool:
        """Read and write as far as that goes without waiting; False when it is over. Raises whatever garbage leads to."""
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
        self.forged = not self.proved and bool(self._received)  # who has said nothing has only looked whether we are here
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
        if len(self._received) > _HELLO:  # ours wait for our proof
            raise secure.ForgedError("more than a proof")
        client_nonce, proof = bytes(self._received[: secure.NONCE_BYTES]), bytes(self._received[secure.NONCE_BYTES :])
        session = secure.Session(self._key, secure.SERVER, self._nonce, client_nonce)
        session.check_peer(proof)
        self._received.clear()
        self._to_send += session.proof()
        self._session = session
        return True

    def close(self, answer: Callable[..., Any]) -> None:
        """End it, as its client wanted to leave."""
        self.open = False
        self.sock.close()
        key, ended, unreachable = self._left
        if key:
            answer("compare_set", key, "", unreachable if self._unreachable else ended)
