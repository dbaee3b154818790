"""Numbers from untrusted sources: JSON accepts 400 digits, 1e999 and NaN, which no clock, disk or count has."""

from __future__ import annotations

import json
from typing import Any

MOST = 1 << 63
_LATEST = 1 << 40
"""In Unix seconds: the year 36812. The calendar of C ends later."""


def is_number(value: object) -> bool:
    """Whether the value is safe for arithmetic: an int or float, not too large, not NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST


def is_time(value: object) -> bool:
    """Whether the value is a moment in Unix seconds, or a duration in seconds."""
    return is_number(value) and isinstance(value, (int, float)) and 0 <= value < _LATEST


def is_index(text: str) -> bool:
    """Whether the text is a whole number, and not too large: `int` takes other digits, too, and no more than 4,300."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def loads(text: str | bytes) -> Any:
    """The JSON value, with None for numbers that fail `is_number`. Raises `ValueError` or `RecursionError`."""
    return json.loads(text, parse_int=_read, parse_float=_read_float, parse_constant=lambda _: None)


def _read(text: str) -> int | None:
    value = int(text)
    return value if is_number(value) else None


def _read_float(text: str) -> float | None:
    value = float(text)
    return value if is_number(value) else None
