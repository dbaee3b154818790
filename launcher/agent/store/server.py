"""The key-value store of a run: a thread on node 0, with clients elsewhere (`client.py`). torch is not needed.

Both ends of a connection first prove that they know the run's key, and so does every message (`network/secure.py`):
four bytes of length, a proof and a JSON text. A client that cannot, or that sends an invalid request, is disconnected
and counted, without affecting others (`connection.py`). Waits are answered later (`values.py`), so no client polls.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..system import processes
from .calls import Due
from .interface import Known, Store, watch_host
from .values import Values

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


_WAIT_S = 0.1
"""At most how long a thread of this process waits for a key: what else it waits for does not wake it."""


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
        self._values = Values()
        self._due: Due[Connection] = Due()
        self._selector = selectors.DefaultSelector()
        need = nodes + self._max_waiting + _OTHER_FILES
        if processes.allow_files(need) < need:
            tell(
                f"the run's store may need {need} open files, and the hard limit of this process is lower (ulimit -Hn)"
            )
        self._listener = listener
        listener.setblocking(False)
        for sock in (listener, self._due.woken):
            self._selector.register(sock, selectors.EVENT_READ)
        self._waiting: Dict[Connection, float] = {}
        """Connections that have not proved themselves, the oldest first, with their deadlines."""

        self._due.thread = threading.Thread(target=self._serve, daemon=True, name="store")
        self._due.thread.start()

    def _ask(self, call: str, *args: Any) -> Any:
        return self._values.call(call, *args)

    def wait(
        self, known: Mapping[str, Known], limit_s: float, sign: Tuple[str, str] = ("", "")
    ) -> List[Optional[bytes]]:
        """As in the base class, but for a short time: nothing is sent for a wait of this process."""
        if sign[0]:
            self.set(*sign)
        over = threading.Event()
        wait = self._values.begin(known, None, over.set)
        over.wait(min(limit_s, _WAIT_S))
        return [None if value is None else value.encode() for value in self._values.end(wait)]

    def _serve(self) -> None:
        limit_s: Optional[float] = None
        while True:
            for key, events in self._selector.select(_sooner(limit_s, 1.0) if self._waiting else limit_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None and key.data.open:  # else it was closed earlier in this loop
                    self._step(key.data, events)
            now = time.monotonic()
            for connection in [late for late, limit in self._waiting.items() if limit < now]:
                self._end(connection, refuse=False)
            limit_s = self._values.expire(now)
            for connection in self._due.take():
                if connection.open:
                    self._step(connection, 0)

    def _step(self, connection: Connection, events: int) -> None:
        waits_for = connection.events
        try:
            goes_on = connection.step(events)
        except Exception:  # noqa: BLE001 - nothing that a stranger sends may end the store
            goes_on, connection.forged = False, True
        if connection.proved:
            self._waiting.pop(connection, None)
        if goes_on and connection.events != waits_for:
            self._selector.modify(connection.sock, connection.events, connection)
        elif not goes_on:
            self._end(connection, refuse=connection.forged)

    def _end(self, connection: Connection, *, refuse: bool) -> None:
        self._waiting.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.close()
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
            connection = Connection(sock, str(address[0]), self._key, self._values, self._due.add)
            self._selector.register(sock, connection.events, connection)
            self._waiting[connection] = time.monotonic() + _PROVE_S
            self._step(connection, selectors.EVENT_WRITE)  # a client that has our nonce knows that the store was here


def _sooner(limit_s: Optional[float], other_s: float) -> float:
    return other_s if limit_s is None else min(limit_s, other_s)
