"""The key-value store of a run: a thread on node 0, with clients elsewhere (`client.py`). torch is not needed.

Both ends of a connection first prove that they know the run's key, and so does every message (`network/secure.py`):
four bytes of length, a proof and a JSON text. A client that cannot, or that sends an invalid request, is disconnected
and counted, without affecting others (`connection.py`).
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..system import processes
from .interface import Store, watch_host

if TYPE_CHECKING:
    from .connection import Connection


_MAX_WAITING = 256
"""How many connections, plus one per node, may be unauthenticated; beyond that, the oldest is closed, and may retry."""

_PROVE_S = 10.0
"""How long a connection may take to prove itself."""

_ACCEPTS = 64
"""How many connections are accepted at once before the existing ones are served again."""

_PAUSE_S = 0.05

_OTHER_FILES = 64
"""At most this many files are open in the serving process in addition to its connections."""


class Server(Store):
    """The store itself, on node 0: answers calls of this process directly, and those of others in a thread."""

    def __init__(
        self,
        listener: socket.socket,
        key: str,
        tell: Callable[[str], None] = lambda _: None,
        *,
        nodes: int = 1,
        host_s: float = 30.0,
    ) -> None:
        """`listener` is already listening, before the others look for it. `tell` is called with warnings.

        `host_s`: how long a client's host may not answer.
        """
        self.refused = 0
        """The number of connections that turned out not to know the key."""

        self._max_waiting = _MAX_WAITING + nodes
        self._key, self._tell, self._host_s = key, tell, host_s
        self._values: Dict[str, str] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        need = 2 * nodes + self._max_waiting + _OTHER_FILES
        if processes.allow_files(need) < need:
            tell(
                f"the run's store may need {need} open files, and the hard limit of this process is lower (ulimit -Hn)"
            )
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener
        self._waiting: Dict[Connection, float] = {}
        """Connections that have not proved themselves, the oldest first, with their deadlines."""

        threading.Thread(target=self._serve, daemon=True, name="store").start()

    def _ask(self, call: str, *args: Any) -> Any:
        with self._lock:
            return _CALLS[call](self._values, *args)

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select(1.0 if self._waiting else None):
                if key.data is None:
                    self._accept()
                elif key.data.open:  # else it was closed earlier in this loop
                    self._step(key.data, events)
            now = time.monotonic()
            for connection in [late for late, limit in self._waiting.items() if limit < now]:
                self._end(connection, refuse=False)

    def _step(self, connection: Connection, events: int) -> None:
        try:
            goes_on = connection.step(events, self._ask)
        except Exception:  # noqa: BLE001 - nothing that a stranger sends may end the store
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
            if not self.refused:  # reported before it is counted, as others wait for the count
                self._tell(
                    f"the run's store has refused a connection from {connection.peer}, "
                    "which does not know the run's key; further ones are counted"
                )
            self.refused += 1

    def _accept(self) -> None:
        from .connection import Connection

        for _ in range(_ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # closed again, or no descriptor is left
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
            self._step(connection, selectors.EVENT_WRITE)  # a client that has our nonce knows that the store was here


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
