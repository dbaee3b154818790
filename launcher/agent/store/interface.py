"""The interface of the run's store and its errors, shared by its server and its clients."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

LENGTH = struct.Struct("!I")

Known = Union[str, int, None]
"""What a wait knows of a key: its value, or None if it is missing, and the wait is over when it is another one. A
number: the wait is over when the key's number is as high. False: the value is only told at the wait's end."""

END_WAIT = "end"
"""A request without an answer: the wait with that number is to be answered now."""

GONE = "gone"
"""Key with the number of connections that closed and left something behind."""

MAX_BYTES = 64 << 20
"""The longest message."""


class StoreError(RuntimeError):
    """The store does not answer, or has no such key."""


class GoneError(StoreError):
    """Node 0 was reachable, and no longer is."""


class UnreachableError(GoneError):
    """Node 0's host does not acknowledge data: the host or the network is lost."""


class SilentError(GoneError):
    """Node 0's host keeps the connection alive, but no answer comes."""


UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
"""The errors of a connection whose other host does not answer."""


def watch_host(sock: socket.socket, limit_s: float) -> None:
    """Break the connection if the other host's kernel does not answer for `limit_s`; the process there need not run."""
    seconds = max(1, int(limit_s / 3)), max(1, int(limit_s / 6))
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or a Python without these names
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds[0])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds[1])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))


def is_met(value: Union[str, bytes, None], known: Known) -> bool:
    """Whether a wait that knows this of a key is over, now that the key has this value."""
    text = value.decode() if isinstance(value, bytes) else value
    if known is False:
        return False
    if isinstance(known, int):
        return text is not None and text.lstrip("-").isdecimal() and int(text) >= known
    return text != known


class Store:
    """The store's calls, named as in torch; all values are bytes, as in torch."""

    def set(self, key: str, value: str) -> None:
        """Set the value of a key."""
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        """The value of a key; raises `StoreError` if it is missing."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> List[bytes]:
        """The values of the keys, in one call; raises `StoreError`, which names the missing ones."""
        values = self._ask("get", *keys)
        missing = [key for key, value in zip(keys, values) if value is None]
        if missing:
            raise StoreError(f"the run's store has no {', '.join(missing[:5])}")
        return [value.encode() for value in values]

    def peek(self, keys: Sequence[str]) -> List[Optional[bytes]]:
        """The values of the keys, in one call; None for those that are missing."""
        return [None if value is None else value.encode() for value in self._ask("get", *keys)]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of the keys exist."""
        return bool(self._ask("check", *keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, initially 0; the sum."""
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key if it has the expected value, where "" stands for a missing key; the resulting value."""
        return str(self._ask("compare_set", key, expected, desired)).encode()

    def multi_set(self, values: Mapping[str, str]) -> None:
        """Set all of these keys, in one call."""
        self._ask("multi_set", dict(values))

    def wait(
        self, known: Mapping[str, Known], limit_s: float, sign: Tuple[str, str] = ("", "")
    ) -> List[Optional[bytes]]:
        """Wait until one of the keys is not as known any more, or for some time; the values of all of them.

        It may end earlier, by `wake` and before its answer would be missed. `sign`: a key to be set first, with its
        value.
        """
        values = self._ask("wait", limit_s, dict(known), *sign)
        return [None if value is None else value.encode() for value in values]

    def wake(self) -> None:
        """End the wait of each thread, or its next one."""

    def tell_silence(self, after_s: float, tell: Callable[[float, bool], None]) -> None:
        """Have `tell` called when an answer takes this long, and again when it comes. One of this process takes none.

        It takes the number of seconds waited, and whether the answer has come.
        """

    def name_of(self, key: str) -> str:
        """The key's name in the run's store."""
        return key

    def _ask(self, call: str, *args: Any) -> Any:
        raise NotImplementedError

    def give_up(self) -> None:
        """Make calls that wait for node 0 fail at once, and all further ones."""


class Prefixed(Store):
    """A part of a store, whose keys start with a prefix."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    def multi_set(self, values: Mapping[str, str]) -> None:
        """As in the base class."""
        self._store.multi_set({f"{self._prefix}/{key}": value for key, value in values.items()})

    def wait(
        self, known: Mapping[str, Known], limit_s: float, sign: Tuple[str, str] = ("", "")
    ) -> List[Optional[bytes]]:
        """As in the base class; the key of `sign` has its whole name."""
        return self._store.wait({f"{self._prefix}/{key}": each for key, each in known.items()}, limit_s, sign)

    def wake(self) -> None:
        """As in the base class."""
        self._store.wake()

    def name_of(self, key: str) -> str:
        """The key's name in the run's store."""
        return self._store.name_of(f"{self._prefix}/{key}")

    def _ask(self, call: str, *args: Any) -> Any:
        keys = len(args) if call in ("get", "check") else 1
        return self._store._ask(call, *(f"{self._prefix}/{key}" for key in args[:keys]), *args[keys:])


def absent(store: Store, prefix: str, numbers: Iterable[int]) -> List[str]:
    """The numbers without a key `PREFIX/NUMBER`, in one call."""
    asked = list(numbers)
    values = store.peek([f"{prefix}/{number}" for number in asked])
    return [str(number) for number, value in zip(asked, values) if value is None]
