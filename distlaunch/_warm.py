"""Fork servers that runs with `--warm` have left standing on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlaunch._messages import quiet
from launcher.service import warm

if TYPE_CHECKING:
    from launcher.results.warm import WarmServer


@quiet
def warm_servers() -> list[WarmServer]:
    """Those of this user, the newest first: the `warm` of `distlaunch ls --warm`."""
    return warm.standing()


@quiet
def end_warm_servers() -> list[WarmServer]:
    """End all of them, and return them: the `ended` of `distlaunch cancel --warm`. Runs that use them go on."""
    return warm.end()
