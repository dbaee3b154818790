"""The key-value store of a run with a fixed number of nodes: a thread on node 0, clients elsewhere; no torch.

Both ends of a connection prove that they know the run's key before anything is said, and so does every message (`secure.py`): a
JSON text behind its length in four bytes and its proof. Whoever cannot, or sends what is no request, loses that connection, is
counted, and costs nobody else anything (`store_connection.py`).
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

if TYPE_CHECKING:
    from .secure import Session
    from .store_connection import Connection

LENGTH = struct.Struct("!I")
MAX_BYTES = 64 << 20
"""No message is longer."""

_MAX_WAITING = 256
"""So many connections may be about to prove themselves; of more, the oldest goes. Ours need one answer for it."""

_PROVE_S = 10.0
"""So long a connection has for that."""

_ACCEPTS = 64
"""Connections taken at once, before those that are there are heard again."""

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0


class StoreError(RuntimeError):
    """The store does not answer, or has no such key."""


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


class Prefixed(Store):
    """A part of a store: its keys begin with a prefix."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    def _ask(self, call: str, *args: Any) -> Any:
        keys = len(args) if call in ("get", "check") else 1
        return self._store._ask(call, *(f"{self._prefix}/{key}" for key in args[:keys]), *args[keys:])


class Client(Store):
    """A connection to the store; calls of several threads wait for one another."""

    def __init__(self, addr: str, port: int, *, key: str, timeout_s: float, tell: Callable[[str], None] = lambda _: None) -> None:
        """Tries for `timeout_s` to reach it; `StoreError` says why that failed. `tell` hears of somebody else who answers."""
        self._lock = threading.Lock()
        limit, pause, told = time.monotonic() + timeout_s, _PAUSE_S, False
        while True:
            left = limit - time.monotonic()
            try:
                self._sock = socket.create_connection((addr, port), timeout=max(left, _PAUSE_S))
                self._session = self._greet(key)
                break
            except (OSError, _StrangerError) as error:
                if left <= pause:
                    raise StoreError(f"the run's store at {addr}:{port} was not reached in {timeout_s:.0f} s: {error}") from error
                if isinstance(error, _StrangerError) and not told:
                    told = True
                    tell(f"{addr}:{port}, where node 0 should be: {error}")
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)
        self._sock.settimeout(None)  # whoever cannot wait has a thread that looks after it
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _greet(self, key: str) -> Session:
        """Prove to one another who we are."""
        from . import secure

        try:
            server_nonce = self._read(secure.NONCE_BYTES)  # node 0 listens long before it answers
        except OSError as error:
            self.close()
            if isinstance(error, ConnectionError):
                raise StoreError(f"the run's store is gone: {error}") from error
            raise
        nonce = secure.nonce()
        session = secure.Session(key, secure.CLIENT, server_nonce, nonce)
        try:
            self._sock.sendall(nonce + session.proof())
            session.check_peer(self._read(secure.MAC_BYTES))
        except (OSError, secure.ForgedError) as error:
            self.close()
            raise _StrangerError("what answers there does not know the run's key") from error
        return session

    def _ask(self, call: str, *args: Any) -> Any:
        request = json.dumps([call, *args]).encode()
        with self._lock:
            try:
                seal = self._session.seal(request)
                self._sock.sendall(LENGTH.pack(len(request)) + seal + request)
                head = self._read(LENGTH.size + len(seal))
                (length,) = LENGTH.unpack_from(head)
                answer = self._read(length) if length <= MAX_BYTES else b""
                self._session.check(head[LENGTH.size :], answer)
                return json.loads(answer)
            except (OSError, ValueError) as error:
                self.close()
                raise StoreError(f"the run's store is gone: {error}") from error

    def leave(self, key: str, value: str) -> None:
        """What the store is to set, if the key is not there, when this connection ends; an empty key: nothing."""
        self._ask("leave", key, value)

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._sock.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionResetError("connection closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class _StrangerError(Exception):
    """Somebody else answers there."""


class Server(Store):
    """The store itself, on node 0: answers this process's own calls directly and others' in a thread."""

    def __init__(self, listener: socket.socket, key: str, tell: Callable[[str], None] = lambda _: None) -> None:
        """`listener` listens already, since before the others look for it. `tell` hears of the first that is refused."""
        self.refused = 0
        """Connections of those who do not know the key."""

        self._key, self._tell = key, tell
        self._values: Dict[str, str] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
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
                self._end(connection)

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

    def _end(self, connection: Connection, *, refuse: bool = True) -> None:
        self._waiting.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.close(self._ask)
        if refuse:
            self.refused += 1
            if self.refused == 1:
                self._tell(
                    f"the run's store has refused a connection from {connection.peer}, which does not know the run's key; "
                    "further ones are counted"
                )

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
                self._end(next(iter(self._waiting)))
                continue
            if len(self._waiting) >= _MAX_WAITING:
                self._end(next(iter(self._waiting)))
            connection = Connection(sock, str(address[0]), self._key)
            self._selector.register(sock, connection.events, connection)
            self._waiting[connection] = time.monotonic() + _PROVE_S


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
