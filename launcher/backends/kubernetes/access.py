"""The connections to the API server and the credentials on them, which may be replaced while we use them."""

from __future__ import annotations

import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes import login
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

_RENEWED_S = 10.0
"""Credentials that were read less than this ago are not read again."""

_PRECISE_S = 2.0
"""The API server gives whole seconds, and its answer takes a moment: what differs by less does not differ."""


class Access:
    """The library's configuration of a cluster, and its pool of connections.

    The library renews only tokens whose end it knows. Others, and certificates, it reads once.
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]]) -> None:
        """`make` reads the credentials, and returns the configuration and the pool that has them."""
        self._make = make
        self._lock = threading.Lock()
        self.configuration, self.pool = make()
        self._read = time.monotonic()
        self._login = login.Rest()
        self.ahead_s = 0.0
        """By how much the clock of this host is ahead of the API server's."""

    def now(self) -> float:
        """The time by the API server's clock, in unix seconds."""
        return time.time() - self.ahead_s

    def credentials(self) -> dict[str, str]:
        """The headers; a login plugin runs again once its credentials have expired. Raises `LoginError`."""
        return self._login.run(
            lambda: {auth["key"]: auth["value"] for auth in self.configuration.auth_settings().values()}
        )

    def request(self, method: str, where: str, headers: Callable[[], dict[str, str]], **how: Any) -> Any:
        """The answer; if that is 401 to the credentials that were read before, the answer to those of now."""
        for last in (False, True):
            pool, own, asked = self.pool, headers(), time.time()
            response = pool.request(method, self.configuration.host + where, headers=own, **how)
            self._compare(response.headers.get("Date", ""), asked)
            if last or response.status != 401 or not self.renew(pool):
                break
            response.drain_conn()
        return response

    def _compare(self, date: str, asked: float) -> None:
        """Compare the clocks, if the answer to what we asked then has a date."""
        try:
            there = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError):
            return
        least, most = asked - there, time.time() - there
        self.ahead_s = least if least > _PRECISE_S else most if most < -_PRECISE_S else 0.0

    def renew(self, refused: Any) -> bool:
        """Read the credentials again, as those of the pool `refused` are; whether there are others now."""
        with self._lock:
            if self.pool is not refused:
                return True
            if time.monotonic() - self._read < _RENEWED_S:
                return False
            try:
                self.configuration, self.pool = self._make()
            except LaunchError:
                return False
            finally:
                self._read = time.monotonic()
            return True
