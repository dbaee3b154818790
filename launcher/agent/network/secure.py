"""Authentication by the run's key: both ends of a connection prove that they know it, and so does every message.

The server sends a nonce, the client its own nonce with a proof over both, the server its proof: a replay has the wrong
nonces. A message carries a MAC over its position in the connection, its direction and its whole content (for the store:
call, key and round, value). Nothing is encrypted.
"""

from __future__ import annotations

import os
from _operator import _compare_digest
from typing import Dict

try:  # `hmac` and `hashlib` load OpenSSL, which takes 3 ms of each start; `random` avoids it in the same way
    from _sha256 import sha256  # type: ignore[import-not-found]  # up to Python 3.11
except ImportError:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:  # a Python that has OpenSSL's only
        from hashlib import sha256

NONCE_BYTES = MAC_BYTES = 32
CLIENT, SERVER = b"client", b"server"

_BLOCK_BYTES, _LARGE_BYTES = 64, 1 << 14
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class ForgedError(ValueError):
    """The data does not come from a peer that knows the run's key, or was changed on its way."""


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) over the parts; all but the last have a fixed length or delimit themselves."""
    return _Keyed(key).mac(b"".join(parts))


class _Keyed:
    """Both digests of an HMAC, as far as the key determines them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        block = (sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
        self._inner, self._outer = sha256(block.translate(_INNER)), sha256(block.translate(_OUTER))

    def mac(self, data: bytes) -> bytes:
        if len(data) > _LARGE_BYTES:  # OpenSSL is up to six times as fast
            import hmac

            return hmac.digest(self._key, data, "sha256")
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return bytes(outer.digest())


def equal(proof: str, expected: str) -> bool:
    """Compare two proofs in a time that does not tell where they differ. Raises `TypeError` if one is not ASCII."""
    return _compare_digest(proof, expected)


def nonce() -> bytes:
    """An unpredictable random number."""
    return os.urandom(NONCE_BYTES)


class Session:
    """One connection, seen from one end."""

    def __init__(self, key: str, me: bytes, server_nonce: bytes, client_nonce: bytes) -> None:
        self._me, self._peer = me, SERVER if me == CLIENT else CLIENT
        self._hello = mac(key.encode(), b"distlaunch hello", server_nonce, client_nonce)
        self._words = _Keyed(mac(key.encode(), b"distlaunch words", server_nonce, client_nonce))
        self._count: Dict[bytes, int] = {CLIENT: 0, SERVER: 0}

    def proof(self) -> bytes:
        """Proof that this end knows the key."""
        return mac(self._hello, self._me)

    def check_peer(self, proof: bytes) -> None:
        """Raise `ForgedError` if the other end does not know the key."""
        if not _compare_digest(proof, mac(self._hello, self._peer)):
            raise ForgedError("it does not know the run's key")

    def seal(self, data: bytes) -> bytes:
        """The MAC for the next message from this end."""
        return self._next(self._me, data)

    def check(self, proof: bytes, data: bytes) -> None:
        """Raise `ForgedError` if this is not the other end's next message."""
        if not _compare_digest(proof, self._next(self._peer, data)):
            raise ForgedError("a message was changed on its way")

    def _next(self, sender: bytes, data: bytes) -> bytes:
        self._count[sender] += 1
        return self._words.mac(b"".join((sender, self._count[sender].to_bytes(8, "big"), data)))
