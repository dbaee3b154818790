"""How long the other end of a connection may be silent, and when it is connected to again."""

from __future__ import annotations

import time

_SILENT_S = (20.0, 160.0)
"""A host that does not even send a keep-alive for this long is disconnected. The limit doubles each time, up to the
second value, so that a slow login on a busy host can finish eventually."""

_PAUSE_S = (0.5, 10.0)


class Patience:
    """How long a host may be silent, and when it is asked again."""

    def __init__(self, more_s: float = 0.0) -> None:
        """`more_s`: how much longer than others it may be silent at first."""
        self._first_s = min(_SILENT_S[0] + more_s, _SILENT_S[1])
        self.heard_at = self._next_try = time.monotonic()
        self.renew()

    def renew(self) -> None:
        """Reset to the initial values: the host responds."""
        self._pause_s, self._silent_s = _PAUSE_S[0], self._first_s

    def heard(self) -> None:
        """Note that data has arrived, or that a connection has just been opened."""
        self.heard_at = time.monotonic()

    def is_over(self) -> bool:
        """Whether it has been silent for too long."""
        return time.monotonic() - self.heard_at > self._silent_s

    def grow(self) -> None:
        """Let the next connection be silent for longer."""
        self._silent_s = min(self._silent_s * 2, _SILENT_S[1])

    def pause(self) -> None:
        """Delay the next connection, for longer each time."""
        self._next_try = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 1.7, _PAUSE_S[1])

    def may_try(self) -> bool:
        """Whether it is time to connect again."""
        return time.monotonic() >= self._next_try
