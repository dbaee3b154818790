"""Suggestions for mistyped names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name most similar to the word, if any, ignoring case and treating dashes and underscores alike."""
    import difflib

    plain = {_plain(name): name for name in names}
    close = difflib.get_close_matches(_plain(word), plain, n=1)
    return plain[close[0]] if close else None


def hint(word: str, names: Iterable[str], what: str = "known") -> str:
    """`did you mean nodes? known: env, grace, nodes`."""
    names = list(names)
    close = nearest(word, names)
    return (f"did you mean {close}? " if close else "") + f"{what}: {', '.join(names)}"


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
