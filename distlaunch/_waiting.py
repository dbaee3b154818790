"""Waiting for the end of a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distlaunch._messages import quiet
from distlaunch._result import Result
from launcher.service import observe, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.runs import records

_POLL_S = 0.05


class Wait:
    """One call that waits."""

    def __init__(self, record: records.Run) -> None:
        self._record = record
        self._lost: dict[str, float] = {}

    @quiet
    def ended(self) -> Result | None:
        """How the run ended; None if it has not. Raises `RequestError` if it never will, or was removed."""
        _, state = waiting.look(self._record)
        if state["exit_code"] is not None:
            return Result.from_json(self._record.id, state)
        self._lost = waiting.lost_since({self._record.id: state}, self._lost)
        return None

    def pauses(self, timeout: float | None) -> Iterator[float]:
        """How long to wait before each further look; ends with the timeout."""
        limit = None if timeout is None else time.monotonic() + timeout
        pause, most = _POLL_S, observe.backend_of(self._record).ask_every_s
        while limit is None or time.monotonic() < limit:
            yield pause if limit is None else max(0.0, min(pause, limit - time.monotonic()))
            pause = min(pause * 1.3, most)
        yield 0.0
