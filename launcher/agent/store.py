"""The key-value store of a run: a thread on node 0, clients elsewhere (`store_client.py`); no torch.

Both ends of a connection prove that they know the run's key before anything is said, and so does every message (`secure.py`): a
JSON text behind its length in four bytes and its proof. Whoever cannot, or sends what is no request, loses that connection, is
counted, and costs nobody else anything (`store_connection.py`).
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from . import processes

if TYPE_CHECKING:
    from .store_connection import Connection

LENGTH = struct.Struct("!I")
MAX_BYTES = 64 << 20
"""No message is longer."""

_MAX_WAITING = 256
"""So many connections, and one for each node, may be about to prove themselves; of more, the oldest goes, and may try again."""

_PROVE_S = 10.0
"""So long a connection has for that."""

_ACCEPTS = 64
"""Connections taken at once, before those that are there are heard again."""

_PAUSE_S = 0.05

_OTHER_FILES = 64
"""So many the process that serves the store has open beside its connections, or fewer."""


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

    def set(self, key: str, value: str) -> None:
        """Give a key its value."""
        self._ask("set", key, value)

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


class Server(Store):
    """The store itself, on node 0: answers this process's own calls directly and others' in a thread."""

    def __init__(
        self,
        listener: socket.socket,
        key: str,
        tell: Callable[[str], None] = lambda _: None,
        *,
        nodes: int = 1,
        host_s: float = 30.0,
    ) -> None:
        """`listener` listens already, since before the others look for it. `tell` hears of the first that is refused.

        `host_s`: so long a client's host may not answer.
        """
        self.refused = 0
        """Connections of those who have shown that they do not know the key."""

        self._max_waiting = _MAX_WAITING + nodes
        self._key, self._tell, self._host_s = key, tell, host_s
        self._values: Dict[str, str] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        need = 2 * nodes + self._max_waiting + _OTHER_FILES
        if processes.allow_files(need) < need:
            tell(f"the run's store may need {need} open files, and the hard limit of this process is lower (ulimit -Hn)")
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener
        self._waiting: Dict[Connection, float] = {}
        """Those that have not proved themselves, the oldest first, with their last moment."""

        threading.Thread(target=self._serve, daemon=True, name="store").start()

    def _ask(self, call: str, *args: Any) -> Any:
        with self._lock:
            return _CALLS[call](self._values, *args)

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select(1.0 if self._waiting else None):
                if key.data is None:
                    self._accept()
                elif key.data.open:  # else it had to go in this very turn
                    self._step(key.data, events)
            now = time.monotonic()
            for connection in [late for late, limit in self._waiting.items() if limit < now]:
                self._end(connection, refuse=False)

    def _step(self, connection: Connection, events: int) -> None:
        try:
            goes_on = connection.step(events, self._ask)
        except Exception:  # noqa: BLE001 - whatever a stranger has sent must not end the store
            goes_on, connection.forged = False, True
        if connection.proved:
            self._waiting.pop(connection, None)
        if goes_on:
            self._selector.modify(connection.sock, connection.events, connection)
        else:
            self._end(connection, refuse=connection.forged)

    def _end(self, connection: Connection, *, refuse: bool) -> None:
        self._waiting.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.close(self._ask)
        if refuse:
            if not self.refused:  # told before it is counted, for who waits for the count
                self._tell(
                    f"the run's store has refused a connection from {connection.peer}, which does not know the run's key; "
                    "further ones are counted"
                )
            self.refused += 1

    def _accept(self) -> None:
        from .store_connection import Connection

        for _ in range(_ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or no descriptor is left for it
                if not self._waiting:
                    time.sleep(_PAUSE_S)
                    return
                self._end(next(iter(self._waiting)), refuse=False)
                continue
            if len(self._waiting) >= self._max_waiting:
                self._end(next(iter(self._waiting)), refuse=False)
            watch_host(sock, self._host_s)
            connection = Connection(sock, str(address[0]), self._key)
            self._selector.register(sock, connection.events, connection)
            self._waiting[connection] = time.monotonic() + _PROVE_S
            self._step(connection, selectors.EVENT_WRITE)  # whoever has our number knows that we were here


def _set(values: Dict[str, str], key: str, value: str) -> None:
    values[key] = str(value)


def _get(values: Dict[str, str], *keys: str) -> List[Optional[str]]:
    return [values.get(key) for key in keys]


def _check(values: Dict[str, str], *keys: str) -> bool:
    return all(key in values for key in keys)


def _add(values: Dict[str, str], key: str, amount: int) -> int:
    total = int(values.get(key, 0)) + int(amount)
    values[key] = str(total)
    return total


def _compare_set(values: Dict[str, str], key: str, expected: str, desired: str) -> str:
    if values.get(key, "") == expected:
        values[key] = str(desired)
    return values.get(key, expected)


_CALLS: Dict[str, Any] = {"set": _set, "get": _get, "check": _check, "add": _add, "compare_set": _compare_set}
