"""How often Python looks for garbage.

Seldom while a command is imported, where it takes a tenth of the time, and not at its end, where it takes most of it.
"""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_SELDOM = 20_000
"""Objects between two collections; Python's own number is 700."""


def seldom() -> None:
    """Collect seldom from now on."""
    gc.set_threshold(_SELDOM)


def as_usual() -> None:
    """Collect as often as Python does by itself."""
    gc.set_threshold(*_USUAL)


def never_again() -> None:
    """Leave everything as it is, for a process that exits now: its files are closed, and nothing else needs cleanup."""
    gc.freeze()
