"""Connections from here to an address that only a login node reaches, through the shared connection to it.

ssh listens on a socket that only this user can open, not on a port that any user of this host could. Each process has
its own socket, and closes it at its end.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import threading
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from launcher.errors import BackendUnavailableError, LaunchError
from launcher.system import proc, storage

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.login.connection import Login

_PAUSE_S = 10.0
"""After a failure, the login node is left alone for this long: it may count failed logins."""

_REFUSED_S = 5.0
_LEAVES_S = 2.0
"""How long the end of a process waits for a thread that connects."""

_TARGET = ".to"
"""Beside each socket, a file of this ending has the address, without which ssh does not stop to listen."""

_numbers = itertools.count()


class Forward:
    """A way to HOST:PORT; when its connection has broken, the next one opens it again."""

    def __init__(self, login: Login, host: str, port: int) -> None:
        self.login = login
        self.there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._lock = threading.Lock()
        self._here: Path | None = None
        self._rests_until, self._failure = 0.0, LaunchError("")
        self._owner = os.getpid()
        atexit.register(self.close)

    def dial(self, timeout_s: float | None = None) -> socket.socket:
        """A connection to the address. Raises `NotLoggedInError` or `BackendUnavailableError`, within 15 s.

        ssh accepts it at once, and closes it if the login node does not reach the address, or forwards nothing.
        """
        with self._lock:
            if (found := self._dialled(timeout_s)) is not None:
                return found
            if time.monotonic() < self._rests_until and not self.login.is_open():
                raise self._failure
            try:
                self._open()
            except LaunchError as error:
                self._rests_until, self._failure = time.monotonic() + _PAUSE_S, error
                raise
            if (found := self._dialled(timeout_s)) is not None:
                return found
        raise BackendUnavailableError(f"{self.login.name} forwards nothing: its connection has just broken")

    def is_refused(self) -> bool:
        """Whether the login node does not let connections through to the address; ssh does not tell why."""
        try:
            *words, address = self.login.words()
            return proc.run((*words, "-W", self.there, address), timeout_s=_REFUSED_S).returncode != 0
        except LaunchError:
            return False

    def close(self) -> None:
        """Have ssh listen no more. A process that was forked from this one leaves the socket as it is."""
        if self._owner == os.getpid() and self._lock.acquire(timeout=_LEAVES_S):
            with suppress(LaunchError):
                self._leave()
            self._lock.release()

    def _dialled(self, timeout_s: float | None) -> socket.socket | None:
        if self._here is None:
            return None
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(self._here))
        except OSError:  # the process that listened has ended
            sock.close()
            return None
        return sock

    def _open(self) -> None:
        self.login.words()
        self._leave()
        here = self.login.socket(f"{os.getpid()}.{next(_numbers)}")
        for left in here.parent.glob(f"{here.name.partition('.')[0]}.*{_TARGET}"):
            if not _lives(left):  # its process was killed
                self._cancel(left.with_suffix(""), left.read_text(encoding="utf-8"))
        storage.write_whole(_target(here), self.there.encode(), mode=0o600)
        if why := self.login.forward("forward", str(here), self.there):
            self._cancel(here, self.there)
            raise BackendUnavailableError(f"{self.login.name} does not forward to {self.there}: {why}")
        self._here = here

    def _leave(self) -> None:
        here, self._here = self._here, None
        if here is not None:
            self._cancel(here, self.there)

    def _cancel(self, here: Path, there: str) -> None:
        self.login.forward("cancel", str(here), there)
        for path in (here, _target(here)):
            path.unlink(missing_ok=True)


@cache
def to(login: Login, host: str, port: int) -> Forward:
    """The way to HOST:PORT, one per process."""
    return Forward(login, host, port)


def _target(here: Path) -> Path:
    return here.with_name(here.name + _TARGET)


def _lives(left: Path) -> bool:
    """Whether the process of that socket, which is one of this host, still runs."""
    try:
        os.kill(int(left.name.split(".")[1]), 0)
    except (ProcessLookupError, ValueError, IndexError):
        return False
    except OSError:
        pass
    return True
