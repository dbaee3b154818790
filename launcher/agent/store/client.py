"""A connection to the run's store from another node, or thread: nothing that it asks waits longer than is said for an answer."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any, Callable, Tuple

from ..network import secure
from .interface import LENGTH, MAX_BYTES, UNREACHABLE, GoneError, SilentError, Store, StoreError, UnreachableError, watch_host

_TimedOutError = socket.timeout
"""A class of its own before Python 3.10."""

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_CONNECT_S = 10.0
"""So long one attempt to connect may take: three lost SYNs. The next one asks again where node 0 is."""

_HANG_UPS = 5
"""Who hangs up on so many proofs is told of; on fewer it may be node 0, to which too many connect at once."""


class Client(Store):
    """Calls of several threads wait for one another."""

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
        """Tries for `timeout_s` to reach it; `StoreError` says why that failed. `tell` hears of somebody else who answers.

        `answer_s`: so long a call may take. `host_s`: so long node 0's host may not answer.
        `comes_back`: another node 0 takes the place there of one that is gone.
        """
        self._answer_s, self._host_s, self._comes_back = answer_s, host_s, comes_back
        self.on_silence: Tuple[float, Callable[[float, bool], None]] = (answer_s, lambda _s, _over: None)
        """After so many seconds without an answer, and when one comes later: called with how long it took and whether it came."""

        self._lock = threading.Lock()
        self._connect(addr, port, key, timeout_s, tell)

    def _connect(self, addr: str, port: int, key: str, timeout_s: float, tell: Callable[[str], None]) -> None:
        """Try for so long; who answers is the run's store, or is told of."""
        limit, pause, hang_ups, told = time.monotonic() + timeout_s, _PAUSE_S, 0, False
        while True:
            left = limit - time.monotonic()
            try:
                self._sock = socket.create_connection((addr, port), timeout=max(min(left, _CONNECT_S), _PAUSE_S))
                watch_host(self._sock, self._host_s)
                self._session = self._greet(key, limit)
                break
            except (OSError, secure.ForgedError) as error:
                if hang_ups and isinstance(error, ConnectionRefusedError) and not self._comes_back:
                    raise GoneError(f"the run's store is gone: {error}") from error
                if left <= pause:
                    raise StoreError(f"the run's store at {addr}:{port} was not reached in {timeout_s:.0f} s: {error}") from error
                hang_ups += isinstance(error, _HungUpError)
                if not told and (isinstance(error, secure.ForgedError) or hang_ups >= _HANG_UPS):
                    told = True
                    tell(f"{addr}:{port}, where node 0 should be: {error}")
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)

    def _greet(self, key: str, limit: float) -> secure.Session:
        """Prove to one another who we are."""
        try:
            # Node 0 listens long before it answers.
            server_nonce = self._read(secure.NONCE_BYTES, self._soon(limit) if self._comes_back else limit)
        except ConnectionError as error:
            self.close()
            if self._comes_back:
                raise
            raise GoneError(f"the run's store is gone: {error}") from error
        except OSError:
            self.close()
            raise
        nonce = secure.nonce()
        session = secure.Session(key, secure.CLIENT, server_nonce, nonce)
        try:
            self._sock.sendall(nonce + session.proof())
            session.check_peer(self._read(secure.MAC_BYTES, self._soon(limit)))
        except ConnectionError as error:
            self.close()
            raise _HungUpError("it hangs up before it has proved that it knows the run's key") from error
        except (OSError, secure.ForgedError):
            self.close()
            raise
        return session

    def _ask(self, call: str, *args: Any) -> Any:
        request = json.dumps([call, *args]).encode()
        with self._lock:
            try:
                seal = self._session.seal(request)
                self._sock.settimeout(self._answer_s)
                self._sock.sendall(LENGTH.pack(len(request)) + seal + request)
                self._await_answer()
                limit = time.monotonic() + self._answer_s
                head = self._read(LENGTH.size + len(seal), limit)
                (length,) = LENGTH.unpack_from(head)
                answer = self._read(length, limit) if length <= MAX_BYTES else b""
                self._session.check(head[LENGTH.size :], answer)
                return json.loads(answer)
            except (OSError, ValueError) as error:
                self.close()
                if getattr(error, "errno", None) in UNREACHABLE:
                    raise UnreachableError(f"the run's store has not answered for {self._host_s:.0f} s: {error}") from error
                if isinstance(error, _TimedOutError):
                    raise SilentError(f"the run's store has not answered for {self._answer_s:.0f} s") from error
                raise GoneError(f"the run's store is gone: {error}") from error

    def _await_answer(self) -> None:
        """Until something has come; what has come while this process was stopped is not too late."""
        began, (quiet_s, tell) = time.monotonic(), self.on_silence
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if poll.poll(1000 * min(quiet_s, self._answer_s)):
            return
        if quiet_s < self._answer_s:
            tell(quiet_s, False)
            if poll.poll(1000 * (self._answer_s - quiet_s)):
                tell(time.monotonic() - began, True)
                return
        raise _TimedOutError("timed out")

    def leave(self, key: str, ended: str, unreachable: str) -> None:
        """What the store is to set, where the key has no value, when this connection ends, or this host does not answer any more.

        An empty key: nothing.
        """
        self._ask("leave", key, ended, unreachable)

    @property
    def peer(self) -> str:
        """The address that has answered."""
        return str(self._sock.getpeername()[0])

    def give_up(self) -> None:
        """Calls that wait fail at once, as all further ones do."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def _soon(self, limit: float) -> float:
        return min(limit, time.monotonic() + self._answer_s)

    def _read(self, count: int, limit: float) -> bytes:
        """So many bytes, all of them by then."""
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
    """The other end has not wanted to hear our proof, or has not come to it."""
