"""What nodes ask of the run's store, and what goes wrong: the same for its server and its clients."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

if TYPE_CHECKING:
    pass

LENGTH = struct.Struct("!I")


MAX_BYTES = 64 << 20
"""No message is longer."""


class StoreError(RuntimeError):
    """The store does not answer, or has no such key."""


class GoneError(StoreError):
    """Node 0 was there, and is not any more."""


class UnreachableError(GoneError):
    """Its host does not acknowledge what is sent to it: that, or the network, is gone."""


class SilentError(GoneError):
    """Its host answers, as the connection stands, but nothing comes through it."""


UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
"""What a connection breaks with whose other host has not answered."""


def watch_host(sock: socket.socket, limit_s: float) -> None:
    """Break the connection when the other host's kernel has not answered for so long; a process there need not run for it to."""
    seconds = max(1, int(limit_s / 3)), max(1, int(limit_s / 6))
    with contextlib.suppress(OSError, AttributeError):  # a kernel that is none of Linux's, or a Python without the names
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds[0])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds[1])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))


class Store:
    """What a node asks of the store, in the calls of torch's; all values are bytes, as torch's are."""

    def set(self, key: str, value: Union[str, bytes]) -> None:
        """Give a key its value; torch 2.4 has bytes of text."""
        self._ask("set", key, value.decode() if isinstance(value, bytes) else value)

    def get(self, key: str) -> bytes:
        """The value of a key that is there; `StoreError` without it."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> List[bytes]:
        """The values of keys that are there, in one call; `StoreError` names those that are not."""
        values = self._ask("get", *keys)
        missing = [key for key, value in zip(keys, values) if value is None]
        if missing:
            raise StoreError(f"the run's store has no {', '.join(missing[:5])}")
        return [value.encode() for value in values]

    def peek(self, keys: Sequence[str]) -> List[Optional[bytes]]:
        """The values of those keys that are there, in one call."""
        return [None if value is None else value.encode() for value in self._ask("get", *keys)]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of the keys are there."""
        return bool(self._ask("check", *keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; the sum."""
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key that has the expected value, or is not there where "" is expected; the value that stands then."""
        return str(self._ask("compare_set", key, expected, desired)).encode()

    def _ask(self, call: str, *args: Any) -> Any:
        raise NotImplementedError

    def give_up(self) -> None:
        """Calls that wait for node 0 fail at once, as all further ones do."""


class Prefixed(Store):
    """A part of a store: its keys begin with a prefix."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    def _ask(self, call: str, *args: Any) -> Any:
        keys = len(args) if call in ("get", "check") else 1
        return self._store._ask(call, *(f"{self._prefix}/{key}" for key in args[:keys]), *args[keys:])
