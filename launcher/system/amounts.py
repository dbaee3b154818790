"""Numbers with what they count, for people."""

from __future__ import annotations


def counted(number: object, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {what}{'s' * (number != 1)}"


def size(count: float) -> str:
    """Bytes: `12 KB`."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
