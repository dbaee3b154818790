"""A connection to the run's store from another node or thread; every call has a time limit."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any, Callable, Iterator, List, Mapping, Optional, Set, Tuple

from ..network import routes, secure
from .interface import (
    END_WAIT,
    LENGTH,
    MAX_BYTES,
    UNREACHABLE,
    GoneError,
    Known,
    SilentError,
    Store,
    StoreError,
    UnreachableError,
    watch_host,
)
from .waiting import SharedWaits

_TimedOutError = socket.timeout
"""Distinct from `TimeoutError` before Python 3.10."""

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_CONNECT_S = 10.0
"""How long one connection attempt may take: three lost SYNs. The next one resolves the address again."""

_HANG_UPS = 5
"""A server that hangs up on this many proofs is reported; fewer may come from a node 0 with too many clients."""


class Client(Store):
    """A client of the store, for all threads of a node: calls wait for one another, and a call that waits makes way."""

    def __init__(
        self,
        addr: str,
        port: int,
        *,
        key: str,
        timeout_s: float,
        answer_s: float = 300.0,
        host_s: float = 30.0,
        comes_back: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Connect within `timeout_s`, or raise `StoreError`. `tell` is called if another server answers there.

        `answer_s`: how long a call may take. `host_s`: how long node 0's host may not answer.
        `comes_back`: a lost node 0 is replaced at the same address.
        """
        self._answer_s, self._host_s, self._comes_back = answer_s, host_s, comes_back
        self.on_silence: Tuple[float, Callable[[float, bool], None]] = (answer_s, lambda _s, _over: None)
        """How many seconds an answer may take before the callback is called; it is called again when the answer comes.

        It takes the number of seconds waited, and whether the answer has come.
        """

        self._lock = threading.Lock()
        self._next = threading.Lock()
        """Held by the thread that gets the connection next."""

        self._is_waiting = False
        self._waits = SharedWaits(self._ask_to_wait, self._interrupt, self._clear)
        self._failure: Optional[GoneError] = None
        """Why there is no connection any more, for all threads."""

        self._connect(addr, port, key, timeout_s, tell)
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def _connect(self, addr: str, port: int, key: str, timeout_s: float, tell: Callable[[str], None]) -> None:
        """Connect within `timeout_s`; a server that is not the run's store is reported."""
        limit, pause, hang_ups, told = time.monotonic() + timeout_s, _PAUSE_S, 0, False
        while True:
            left = limit - time.monotonic()
            try:
                self._sock = routes.connect(addr, port, max(min(left, _CONNECT_S), _PAUSE_S))
                watch_host(self._sock, self._host_s)
                self._session = self._greet(key, limit)
                break
            except (OSError, secure.ForgedError) as error:
                if hang_ups and isinstance(error, ConnectionRefusedError) and not self._comes_back:
                    raise GoneError(f"the connection to the run's store is lost: {error}") from error
                if left <= pause:
                    raise StoreError(
                        f"the run's store at {addr}:{port} was not reached in {timeout_s:.0f} s: {error}"
                    ) from error
                hang_ups += isinstance(error, _HungUpError)
                if not told and (isinstance(error, secure.ForgedError) or hang_ups >= _HANG_UPS):
                    told = True
                    tell(f"{addr}:{port}, where node 0 should be: {error}")
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)

    def _greet(self, key: str, limit: float) -> secure.Session:
        """Authenticate both ends to one another.

        Our nonce goes first: if more connect than node 0's kernel can queue, it forgets some that it has accepted, and
        takes them up again only when data arrives.
        """
        nonce = secure.nonce()
        try:
            self._sock.sendall(nonce)
            # Node 0 listens long before it answers.
            server_nonce = self._read(secure.NONCE_BYTES, self._soon(limit) if self._comes_back else limit)
        except ConnectionError as error:
            self._sock.close()
            if self._comes_back:
                raise
            raise _HungUpError("it hangs up before it has answered") from error
        except OSError:
            self._sock.close()
            raise
        session = secure.Session(key, secure.CLIENT, server_nonce, nonce)
        try:
            self._sock.sendall(session.proof())
            session.check_peer(self._read(secure.MAC_BYTES, self._soon(limit)))
        except ConnectionError as error:
            self._sock.close()
            raise _HungUpError("it hangs up before it has proved that it knows the run's key") from error
        except (OSError, secure.ForgedError):
            self._sock.close()
            raise
        return session

    def _ask(self, call: str, *args: Any) -> Any:
        with self._turn(waits=call == "wait"):
            try:
                self._send([call, *args])
                self._await_answer()
                limit = time.monotonic() + self._answer_s
                head = self._read(LENGTH.size + secure.MAC_BYTES, limit)
                (length,) = LENGTH.unpack_from(head)
                answer = self._read(length, limit) if length <= MAX_BYTES else b""
                self._session.check(head[LENGTH.size :], answer)
                return json.loads(answer)
            except (OSError, ValueError) as error:
                self.close()
                self._failure = self._failure or self._lost(error)
                raise type(self._failure)(*self._failure.args) from error

    def _lost(self, error: Exception) -> GoneError:
        if getattr(error, "errno", None) in UNREACHABLE:
            return UnreachableError(f"the run's store has not answered for {self._host_s:.0f} s: {error}")
        if isinstance(error, _TimedOutError):
            return SilentError(f"the run's store has not answered for {self._answer_s:.0f} s")
        return GoneError(f"the connection to the run's store is lost: {error}")

    def wait(
        self, known: Mapping[str, Known], limit_s: float, sign: Tuple[str, str] = ("", "")
    ) -> List[Optional[bytes]]:
        """As in the base class. Waits of several threads are one call."""
        values = self._waits.wait(known, limit_s, sign)
        return [None if value is None else value.encode() for value in values]

    def _ask_to_wait(self, limit_s: float, known: Mapping[str, Known], sign: Tuple[str, str]) -> Any:
        return self._ask("wait", limit_s, dict(known), *sign)

    def wake(self) -> None:
        """End the wait of each other thread, or its next one."""
        self._waits.wake()

    @contextlib.contextmanager
    def _turn(self, *, waits: bool) -> Iterator[None]:
        """The connection for one call, after those that came before; a wait ends once another call comes."""
        with self._next:
            if self._is_waiting:
                self._interrupt()
            self._lock.acquire()
            self._is_waiting = waits
        try:
            yield
        finally:
            self._is_waiting = False
            self._lock.release()

    def _interrupt(self) -> None:
        """End the wait that is open, or the next one until `_clear`."""
        with contextlib.suppress(OSError):  # it was interrupted often enough
            self._waker.send(b"\0")

    def _clear(self) -> None:
        with contextlib.suppress(OSError):
            self._woken.recv(64)

    def _send(self, request: Any) -> None:
        text = json.dumps(request).encode()
        seal = self._session.seal(text)
        self._sock.settimeout(self._answer_s)
        self._sock.sendall(LENGTH.pack(len(text)) + seal + text)

    def _await_answer(self) -> None:
        """Wait until data arrives; data that arrived while this process was stopped is not too late."""
        began, (quiet_s, tell), told = time.monotonic(), self.on_silence, False
        while True:
            limit_s = self._answer_s if told else min(quiet_s, self._answer_s)
            ready = self._ready(limit_s - (time.monotonic() - began))
            if self._sock in ready:
                break
            if ready:
                self._clear()
                self._send([END_WAIT])
            elif limit_s == self._answer_s:
                raise _TimedOutError("timed out")
            else:
                told = True
                tell(quiet_s, False)
        if told:
            tell(time.monotonic() - began, True)

    def _ready(self, limit_s: float) -> Set[socket.socket]:
        """The sockets with data: the connection's and, while a call waits, the one that ends it."""
        sockets = {sock.fileno(): sock for sock in (self._sock, *([self._woken] if self._is_waiting else ()))}
        poll = select.poll()
        for fd in sockets:
            poll.register(fd, select.POLLIN)
        return {sockets[fd] for fd, _ in poll.poll(max(0.0, 1000 * limit_s))}

    def leave(self, key: str, ended: str, unreachable: str) -> None:
        """Have the store set the key to `ended` when this connection closes, or to `unreachable` if this host is lost.

        A key that has a value is left as it is; with an empty key, nothing is set.
        """
        self._ask("leave", key, ended, unreachable)

    @property
    def peer(self) -> str:
        """The address of the server."""
        return str(self._sock.getpeername()[0])

    def give_up(self) -> None:
        """Make waiting calls fail at once, and all further ones."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        for sock in (self._sock, self._woken, self._waker):
            sock.close()

    def _soon(self, limit: float) -> float:
        return min(limit, time.monotonic() + self._answer_s)

    def _read(self, count: int, limit: float) -> bytes:
        """Read exactly `count` bytes, before the limit."""
        parts = []
        while count:
            left = limit - time.monotonic()
            if left <= 0:
                raise _TimedOutError("timed out")
            self._sock.settimeout(left)
            part = self._sock.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionResetError("connection closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class _HungUpError(ConnectionError):
    """The other end closed the connection before both had proved themselves."""
