"""Checks of every step of a launch, one after another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = 3


def count(check: Callable[[int], bool]) -> int:
    """Check step 1, 2, … until there is no such step; the number of steps."""
    reached: list[bool] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while all(reached):
            reached += pool.map(check, range(len(reached) + 1, len(reached) + 1 + AT_ONCE))
    return sum(reached)
