"""The connections to the API server and the credentials on them, which may be replaced while we use them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

_RENEWED_S = 10.0
"""Credentials that were read less than this ago are not read again."""


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
