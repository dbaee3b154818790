"""When Python looks for garbage: not while a command is imported, a tenth of which that would take, nor at its end."""

from __future__ import annotations

import gc


def not_yet() -> None:
    """Collect nothing while modules are imported, all of which stay."""
    gc.disable()


def as_usual() -> None:
    """Collect from now on, but never look at what was imported."""
    gc.freeze()
    gc.enable()


def never_again() -> None:
    """Leave everything as it is, for a process that exits now: its files are closed, and nothing else needs cleanup."""
    gc.freeze()
