"""Numbers with units, as text."""

from __future__ import annotations


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
