"""One connection to the run's store, seen from the server: no request is parsed before the client's proof."""

from __future__ import annotations

import json
import selectors
import socket
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from ..network import secure
from .calls import Calls
from .interface import LENGTH, MAX_BYTES, UNREACHABLE

if TYPE_CHECKING:
    from .values import Values

_READ_BYTES = 1 << 16
_HEAD = LENGTH.size + secure.MAC_BYTES
_HELLO = secure.NONCE_BYTES + secure.MAC_BYTES


class Connection:
    """Starts with our nonce; then come the client's nonce and proof, our proof, and requests."""

    def __init__(
        self, sock: socket.socket, peer: str, key: str, values: Values, over: Callable[[Connection], object]
    ) -> None:
        """`over` is called, in any thread, once a wait of this connection is over."""
        sock.setblocking(False)
        self.sock, self.peer = sock, peer
        self.open = True
        self.events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self.forged = False
        """Whether the data does not come from a client that knows the key."""

        self._key, self._nonce = key, secure.nonce()
        self._session: Optional[secure.Session] = None
        self._received, self._to_send = bytearray(), bytearray(self._nonce)
        self._calls = Calls(values, lambda: over(self))
        self._unreachable = False

    @property
    def proved(self) -> bool:
        """Whether the client has proved that it knows the key."""
        return self._session is not None

    def step(self, events: int) -> bool:
        """Read and write without blocking; False if the connection is over. Garbage may raise any exception."""
        try:
            if events & selectors.EVENT_READ:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    return self._ended()
                self._received += data
                self._answer_all()
            self._reply(self._calls.late())
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
        # A client that sent nothing has only checked whether the store is listening, and one that has sent its nonce
        # was too early, or has ended.
        self.forged = not self.proved and len(self._received) not in (0, secure.NONCE_BYTES)
        return False

    def _answer_all(self) -> None:
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
            self._reply(self._calls.answer(*json.loads(request)))

    def _reply(self, answers: List[Any]) -> None:
        for answer in answers:
            assert self._session is not None
            reply = json.dumps(answer).encode()
            self._to_send += LENGTH.pack(len(reply)) + self._session.seal(reply) + reply

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

    def close(self) -> None:
        """Close the connection, and set the key that its client left behind."""
        self.open = False
        self.sock.close()
        self._calls.close(unreachable=self._unreachable)
