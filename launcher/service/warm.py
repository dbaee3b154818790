"""The fork servers that runs of this user have left standing, on this machine or on the hosts of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends import _warm
from launcher.errors import BackendUnavailableError

if TYPE_CHECKING:
    from launcher.results.warm import WarmServer


def standing(on: str | None = None) -> list[WarmServer]:
    """All of them, the newest first. `on`: a cluster or backend; None: this machine."""
    return _asked(on, end=False)


def end(on: str | None = None) -> list[WarmServer]:
    """End all of them; returns those that stood until now. Runs that use them are not affected."""
    return _asked(on, end=True)


def _asked(on: str | None, *, end: bool) -> list[WarmServer]:
    if on is None:
        return _warm.here(end=end)
    from launcher.service import cluster  # what is here needs no settings

    backend = cluster.of(on)
    if not backend.can_keep:
        hint = "--warm works with local and over SSH"
        where = on if on == backend.name else f"{on} ({backend.name})"
        raise BackendUnavailableError(f"nothing stays after a run on {where}", hint=hint)
    return backend.standing(end=end)
