"""Axes: positions of values, round numbers on them, and their texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEPS_S = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
    604800,
)  # fmt: skip
"""Distances between ticks of time, in seconds."""


class Scale(NamedTuple):
    """Maps values linearly to positions."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value, with one decimal."""
        part = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return round(self.start + part * (self.end - self.start), 1)


def time_ticks(length_s: float, most: int = 8) -> list[float]:
    """Round times from 0 to `length_s`, in seconds."""
    step = next((step for step in _STEPS_S if length_s / step <= most), max(1.0, math.ceil(length_s / most)))
    return [number * step for number in range(int(length_s / step + 1e-9) + 1)]


def time_text(seconds: float) -> str:
    """`0`, `0.5 s`, `30 s`, `5 min`, `2 h`, `1 h 30 min`, `2 d`."""
    if seconds < 60:
        return f"{seconds:g} s" if seconds else "0"
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")) if count]
    return " ".join(parts[:2])


def value_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that cover a range of values, its ends included."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def bounds(values: Iterable[float | None]) -> tuple[float, float] | None:
    """The least and the greatest known value; None if there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return (min(known), max(known)) if known else None
