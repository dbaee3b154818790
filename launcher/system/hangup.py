"""SIGHUP, blocked while a closed terminal is not to end what we do, nor the programs that we start for it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_HANGUP = frozenset({signal.SIGHUP})
_blocked: list[bool] = []
"""Whether it was blocked before, for each time that we have blocked it."""


def block() -> None:
    """Block it, unless it is ignored (nohup), until `unblock`. Programs that are started meanwhile inherit that."""
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        _blocked.append(signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUP))


def unblock() -> None:
    """Undo `block`; a signal that has come meanwhile is delivered."""
    if _blocked and not _blocked.pop():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUP)


def pending() -> bool:
    """Whether one has come while it was blocked by us."""
    return bool(_blocked) and not _HANGUP.isdisjoint(signal.sigpending())


@contextmanager
def as_found() -> Iterator[None]:
    """Start programs that outlive us as if we had not blocked it."""
    own = bool(_blocked) and not _blocked[0]
    if own:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUP)
    try:
        yield
    finally:
        if own:
            signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUP)
