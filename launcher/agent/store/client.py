"""A connection to the run's store from another node or thread; every call has a time limit."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple

from ..network import routes, secure
from .exchange import Exchange, TimedOutError, read
from .interface import (
    UNREACHABLE,
    GoneError,
    Known,
    SilentError,
    Store,
    StoreError,
    UnreachableError,
    watch_host,
)

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_CONNECT_S = 10.0
"""How long one connection attempt may take: three lost SYNs. The next one resolves the address again."""

_HANG_UPS = 5
"""A server that hangs up on this many proofs is reported; fewer may come from a node 0 with too many clients."""


class Client(Store):
    """A client of the store, for all threads of a node."""

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
        self._connect(addr, port, key, timeout_s, tell)
        self._exchange = Exchange(self._sock, self._session, answer_s)

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
            server_nonce = read(
                self._sock, secure.NONCE_BYTES, self._left(limit) if self._comes_back else limit - time.monotonic()
            )
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
            session.check_peer(read(self._sock, secure.MAC_BYTES, self._left(limit)))
        except ConnectionError as error:
            self._sock.close()
            raise _HungUpError("it hangs up before it has proved that it knows the run's key") from error
        except (OSError, secure.ForgedError):
            self._sock.close()
            raise
        return session

    def _ask(self, call: str, *args: Any) -> Any:
        with self._errors():
            return self._exchange.call([call, *args])

    def wait(
        self, known: Mapping[str, Known], limit_s: float, sign: Tuple[str, str] = ("", "")
    ) -> List[Optional[bytes]]:
        """As in the base class; other threads may call and wait meanwhile."""
        with self._errors():
            values = self._exchange.wait(limit_s, known, sign)
        return [None if value is None else value.encode() for value in values]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in UNREACHABLE:
                text = f"the run's store has not answered for {self._host_s:.0f} s: {error}"
                raise UnreachableError(text) from error
            if isinstance(error, TimedOutError):
                raise SilentError(f"the run's store has not answered for {self._answer_s:.0f} s") from error
            raise GoneError(f"the connection to the run's store is lost: {error}") from error

    def wake(self) -> None:
        """As in the base class."""
        self._exchange.wake()

    def tell_silence(self, after_s: float, tell: Callable[[float, bool], None]) -> None:
        """As in the base class."""
        self._exchange.on_silence = after_s, tell

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
        self._exchange.give_up()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _left(self, limit: float) -> float:
        return min(limit - time.monotonic(), self._answer_s)


class _HungUpError(ConnectionError):
    """The other end closed the connection before both had proved themselves."""
