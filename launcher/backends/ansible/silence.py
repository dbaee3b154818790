"""Since when a host has answered none of several questions in a row, in a process that asks again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_APART_S = 60.0
"""Of the time between questions that are further apart, nothing is known."""

_since: dict[tuple[Path, str], tuple[float, float]] = {}
"""By stream and host, on the monotonic clock: since when, and the last question."""


def begins(stream: Path, host: str, lost_at: float) -> float:
    """When the silence has begun that includes this question, not answered since `lost_at`."""
    now = time.monotonic()
    began, last = _since.get((stream, host), (lost_at, now))
    began = began if now - last < _APART_S else lost_at
    _since[stream, host] = began, now
    return began


def ends(stream: Path, host: str) -> None:
    """The host has answered, or was not asked."""
    _since.pop((stream, host), None)
