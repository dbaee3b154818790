"""Authentication by the run's key: both ends of a connection prove that they know it, and so does every message.

The server sends a nonce, the client its own nonce with a proof over both, the server its proof: a replay has the wrong
nonces. A message carries a MAC over its position in the connection, its direction and its whole content (for the store:
call, key and round, value). Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import os
from typing import Dict

NONCE_BYTES = MAC_BYTES = 32
CLIENT, SERVER = b"client", b"server"


class ForgedError(ValueError):
    """The data does not come from a peer that knows the run's key, or was changed on its way."""


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the parts; all but the last have a fixed length or delimit themselves."""
    return hmac.digest(key, b"".join(parts), "sha256")


def nonce() -> bytes:
    """An unpredictable random number."""
    return os.urandom(NONCE_BYTES)


class Session:
    """One connection, seen from one end."""

    def __init__(self, key: str, me: bytes, server_nonce: bytes, client_nonce: bytes) -> None:
        self._me, self._peer = me, SERVER if me == CLIENT else CLIENT
        self._hello = mac(key.encode(), b"distlaunch hello", server_nonce, client_nonce)
        self._key = mac(key.encode(), b"distlaunch words", server_nonce, client_nonce)
        self._count: Dict[bytes, int] = {CLIENT: 0, SERVER: 0}

    def proof(self) -> bytes:
        """Proof that this end knows the key."""
        return mac(self._hello, self._me)

    def check_peer(self, proof: bytes) -> None:
        """Raise `ForgedError` if the other end does not know the key."""
        if not hmac.compare_digest(proof, mac(self._hello, self._peer)):
            raise ForgedError("it does not know the run's key")

    def seal(self, data: bytes) -> bytes:
        """The MAC for the next message from this end."""
        return self._next(self._me, data)

    def check(self, proof: bytes, data: bytes) -> None:
        """Raise `ForgedError` if this is not the other end's next message."""
        if not hmac.compare_digest(proof, self._next(self._peer, data)):
            raise ForgedError("a message was changed on its way")

    def _next(self, sender: bytes, data: bytes) -> bytes:
        self._count[sender] += 1
        return mac(self._key, sender, self._count[sender].to_bytes(8, "big"), data)
