"""Fork servers that runs with `--warm` have left standing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlaunch._messages import quiet
from launcher.service import warm

if TYPE_CHECKING:
    from launcher.results.warm import WarmServer


@quiet
def warm_servers(cluster: str | None = None) -> list[WarmServer]:
    """Those of this user, the newest first: the `warm` of `distlaunch ls --warm`.

    `cluster`: on the hosts of this cluster or backend, as with `--on`. By default, on this machine.
    """
    return warm.standing(cluster)


@quiet
def end_warm_servers(cluster: str | None = None) -> list[WarmServer]:
    """End all of them, and return them: the `ended` of `distlaunch cancel --warm`. Runs that use them go on.

    `cluster` as for `warm_servers`. Raises `CommandError` if some of its hosts do not answer.
    """
    return warm.end(cluster)
