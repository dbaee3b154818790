"""Times that Slurm's commands print: a login node may be in another time zone than this host."""

from __future__ import annotations

import time
from contextlib import suppress

_STANDARD = "%Y-%m-%dT%H:%M:%S"


def seconds(text: str) -> float | None:
    """Unix seconds; None for a local time, of a command that was not asked for them, or if there is no time."""
    return float(text) if text.isdecimal() else None


def assumed(text: str) -> float:
    """The same, a local time taken for one of this time zone; 0 if there is no time."""
    with suppress(ValueError, OverflowError):
        return seconds(text) or time.mktime(time.strptime(text, _STANDARD))
    return 0.0


def shown(text: str) -> str:
    """The time as Slurm would print it here; a local time, and what is no time, as it is."""
    with suppress(ValueError, OverflowError, OSError):
        at = seconds(text)
        return text if at is None else time.strftime(_STANDARD, time.localtime(at))
    return text
