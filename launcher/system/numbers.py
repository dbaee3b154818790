"""Numbers as others may have written them: JSON takes 400 digits, 1e999 and NaN, which no clock, disk or count has."""

from __future__ import annotations

import json
from typing import Any

MOST = 1 << 63
_LATEST = 1 << 40
"""In unix seconds: the year 36812. The calendar of C ends later."""


def is_number(value: object) -> bool:
    """Whether it is a number that arithmetic takes: an int or float, not too large, no NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST


def is_time(value: object) -> bool:
    """Whether it is a moment in unix seconds, or a span of so many."""
    return is_number(value) and isinstance(value, (int, float)) and 0 <= value < _LATEST


def loads(text: str | bytes) -> Any:
    """The JSON value, with None in place of what is no such number. `ValueError` or `RecursionError` for what is no JSON."""
    return json.loads(text, parse_int=_read, parse_float=_read_float, parse_constant=lambda _: None)


def _read(text: str) -> int | None:
    value = int(text)
    return value if is_number(value) else None


def _read_float(text: str) -> float | None:
    value = float(text)
    return value if is_number(value) else None
