"""Numbers with units, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(number: object, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {what}{'s' * (number != 1)}"


def size(count: float) -> str:
    """A number of bytes: `12 KB`."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def listed(names: Iterable[object], most: int = 3) -> str:
    """The first names: `n1, n2, n3 and 61 more`."""
    every = list(map(str, names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def measured(value: float, unit: str = "") -> str:
    """`0.31`, `12 GB`, `80 %`; large numbers with a prefix."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor * 0.9995 and unit != "%":
            return f"{value / factor:.4g} {prefix}{unit}".rstrip()
    return f"{value:.4g} {unit}".rstrip()
