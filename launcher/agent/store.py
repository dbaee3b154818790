"""The key-value store of a run with a fixed number of nodes: a thread on node 0, clients elsewhere; no torch.

Calls and answers are those of torch's `Store` as far as they are used here, so that either serves. A message is a JSON text
behind its length in four bytes. What a connection sends that is no request ends that connection, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

_LENGTH = struct.Struct("!I")
_MAX_BYTES = 64 << 20
"""No request is longer; a stranger who says so is not listened to."""

_READ_BYTES = 1 << 16
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0


class StoreError(RuntimeError):
    """The store does not answer, or has no such key."""


class Store:
    """What a node asks of the store; all values are bytes, as torch's are."""

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

    def __init__(self, addr: str, port: int, *, timeout_s: float) -> None:
        """Tries for `timeout_s` to reach it; `StoreError` says why that failed."""
        self._lock = threading.Lock()
        limit, pause = time.monotonic() + timeout_s, _PAUSE_S
        while True:
            left = limit - time.monotonic()
            try:
                self._sock = socket.create_connection((addr, port), timeout=max(left, _PAUSE_S))
                break
            except OSError as error:
                if left <= pause:
                    raise StoreError(f"the run's store at {addr}:{port} was not reached in {timeout_s:.0f} s: {error}") from error
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)
        self._sock.settimeout(None)  # whoever cannot wait has a thread that looks after it
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _ask(self, call: str, *args: Any) -> Any:
        request = json.dumps([call, *args]).encode()
        with self._lock:
            try:
                self._sock.sendall(_LENGTH.pack(len(request)) + request)
                (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
                return json.loads(self._read(length))
            except (OSError, ValueError) as error:
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


class Server(Store):
    """The store itself, on node 0: answers this process's own calls directly and others' in a thread."""

    def __init__(self, listener: socket.socket) -> None:
        """`listener` listens already, since before the others look for it."""
        self._values: Dict[str, str] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener
        threading.Thread(target=self._serve, daemon=True, name="store").start()

    def _ask(self, call: str, *args: Any) -> Any:
        with self._lock:
            return _CALLS[call](self._values, *args)

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select():
                if key.data is None:
                    self._accept()
                    continue
                try:
                    goes_on = key.data.step(events, self._ask)
                except Exception:  # noqa: BLE001 - whatever a stranger has sent must not end the store
                    goes_on = False
                if goes_on:
                    self._selector.modify(key.fileobj, key.data.events, key.data)
                else:
                    self._selector.unregister(key.fileobj)
                    key.data.close(self._ask)

    def _accept(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except OSError:  # gone again, or no descriptor is left for it
            time.sleep(_PAUSE_S)
            return
        connection = _Connection(sock)
        self._selector.register(sock, connection.events, connection)


class _Connection:
    """One client, seen from the server."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._received, self._to_send = bytearray(), bytearray()
        self._left = ("", "")
        """Key and value that `leave` has told."""

        self.events = selectors.EVENT_READ

    def step(self, events: int, answer: Any) -> bool:
        """Read and write as far as that goes without waiting; False when it is over."""
        try:
            if events & selectors.EVENT_READ:
                data = self._sock.recv(_READ_BYTES)
                if not data:
                    return False
                self._received += data
                self._answer_all(answer)
            if self._to_send:
                del self._to_send[: self._sock.send(self._to_send)]
        except BlockingIOError:
            pass
        self.events = selectors.EVENT_WRITE if self._to_send else selectors.EVENT_READ
        return True

    def _answer_all(self, answer: Any) -> None:
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > _MAX_BYTES:
                raise ValueError(length)
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            call, *args = json.loads(self._received[_LENGTH.size : end])
            del self._received[:end]
            if call == "leave":
                self._left = (str(args[0]), str(args[1]))
            reply = json.dumps(None if call == "leave" else answer(call, *args)).encode()
            self._to_send += _LENGTH.pack(len(reply)) + reply

    def close(self, answer: Any) -> None:
        self._sock.close()
        key, value = self._left
        if key:
            answer("compare_set", key, "", value)


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
