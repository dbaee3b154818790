"""Connections to the port: those without a request keep no one out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

_MOST_IDLE, _ASKS_S = 64, 10.0
"""How many may wait with no request, the oldest of which is closed for another one; and how long for the first."""


class Connection(H11Protocol):
    """uvicorn's own, which otherwise waits for a first request without end, and counts towards its limit meanwhile."""

    since = 0.0

    @property
    def idle(self) -> bool:
        """Whether it has no request that is being answered, and no answer of which its reader still takes a part."""
        return self.cycle is None or (self.cycle.response_complete and not self.transport.get_write_buffer_size())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take its place, and that of the oldest idle one if there are many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        idle: list[Any] = [each for each in self.connections if isinstance(each, Connection) and each.idle]
        if len(idle) > _MOST_IDLE:
            min(idle, key=lambda each: each.since).end()
        self.loop.call_later(_ASKS_S, self._look)

    def _look(self) -> None:
        if self.cycle is None:
            self.end()

    def end(self) -> None:
        """Close it at once, and count it no more."""
        self.connections.discard(self)
        self.transport.abort()
