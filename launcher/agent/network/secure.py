"""Who knows the run's key: both ends of a connection prove it to one another, and so does every message.

The server sends a random number, the client one of its own with a proof for both, the server its proof: whoever replays what
was said before has the wrong numbers. A message carries a proof over its place in the connection, its direction and its whole
content (for the store: call, key and round, value). Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import os
from typing import Dict

NONCE_BYTES = MAC_BYTES = 32
CLIENT, SERVER = b"client", b"server"


class ForgedError(ValueError):
    """What came is not from one who knows the run's key, or not what that one has sent."""


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the parts, of which all but the last have a fixed length or end themselves."""
    return hmac.digest(key, b"".join(parts), "sha256")


def nonce() -> bytes:
    """A number that nobody can foresee."""
    return os.urandom(NONCE_BYTES)


class Session:
    """One connection, seen from one end."""

    def __init__(self, key: str, me: bytes, server_nonce: bytes, client_nonce: bytes) -> None:
        self._me, self._peer = me, SERVER if me == CLIENT else CLIENT
        self._hello = mac(key.encode(), b"distlaunch hello", server_nonce, client_nonce)
        self._key = mac(key.encode(), b"distlaunch words", server_nonce, client_nonce)
        self._count: Dict[bytes, int] = {CLIENT: 0, SERVER: 0}

    def proof(self) -> bytes:
        """That this end knows the key."""
        return mac(self._hello, self._me)

    def check_peer(self, proof: bytes) -> None:
        """Raises `ForgedError` where the other end does not know it."""
        if not hmac.compare_digest(proof, mac(self._hello, self._peer)):
            raise ForgedError("it does not know the run's key")

    def seal(self, data: bytes) -> bytes:
        """The proof for the next message from here."""
        return self._next(self._me, data)

    def check(self, proof: bytes, data: bytes) -> None:
        """Raises `ForgedError` where this is not the other end's next message."""
        if not hmac.compare_digest(proof, self._next(self._peer, data)):
            raise ForgedError("a message was changed on its way")

    def _next(self, sender: bytes, data: bytes) -> bytes:
        self._count[sender] += 1
        return mac(self._key, sender, self._count[sender].to_bytes(8, "big"), data)
