"""What a run's samples tell: how far it is, and what is odd about its ranks and hosts."""

from __future__ import annotations

from typing import Literal, TypedDict


class Progress(TypedDict):
    """How far a run is, by what its ranks have told."""

    step: int
    """The lowest of all ranks that tell one."""

    steps: int | None
    """The total; null without one."""

    loss: float | None
    """Of the first rank that tells one."""

    rate: float | None
    """Steps per second in the last minutes, the median of the ranks; null before two of them."""

    eta_s: float | None
    """Seconds to the last step at that rate; null if that is not known, or is over, or the run has ended."""

    ranks: int
    """How many ranks tell their progress."""

    time: float
    """When the last of them did, Unix seconds on its host."""


class Finding(TypedDict):
    """A rank or host that differs from the others by more than is usual for them."""

    kind: Literal["slow", "busy", "idle_gpu", "hang"]
    """`slow`: it takes longer for a step; `busy`: it computes while the others wait; `idle_gpu`: its GPU does less;
    `hang`: the run hangs, and waits for it."""

    node: int
    host: str
    rank: int | None
    """Null if all ranks of the host are like this. Of a hang the first odd rank; null if that cannot be told."""

    message: str
    source: str
    """What was compared."""


class Watched(TypedDict):
    """What the samples of a run tell."""

    progress: Progress | None
    """Null if no rank has told any."""

    findings: list[Finding]
    """The worst first."""
