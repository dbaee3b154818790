"""Results about fork servers that runs have left standing (`--warm`)."""

from __future__ import annotations

from typing import TypedDict


class WarmServer(TypedDict):
    """A fork server that waits for the next run."""

    host: str
    pid: int
    python: str
    modules: list[str]
    """What it has imported for workers."""

    since: float
    until: float
    """In unix seconds: when its run left it, and when it ends unless a run uses it before."""

    runs: int
    """How many have used it."""

    memory_bytes: int | None
    """Memory that would be free without it; null if the kernel does not tell."""


class WarmServers(TypedDict):
    """With `ls --warm`: those of this user, the newest first."""

    warm: list[WarmServer]


class WarmEnded(TypedDict):
    """With `cancel --warm`: those that were ended."""

    ended: list[WarmServer]
