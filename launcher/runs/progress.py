"""How far a run is: step, rate and time left, from the samples of its nodes."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.results.progress import Progress
    from launcher.runs.samples import NodeSample

WINDOW_S = 300.0
"""Rates are those of the last minutes that are known."""


class Mark(NamedTuple):
    """A step that a rank has told, and when."""

    told: float
    step: int


def marks(series: Sequence[NodeSample], rank: int, window_s: float = WINDOW_S) -> list[Mark]:
    """The steps that a rank has told in the last minutes of these samples, oldest first, since it last began anew."""
    found: list[Mark] = []
    for sample in reversed(series):
        one = next((each for each in sample.ranks if each.rank == rank), None)
        if one is None or one.step is None or one.told is None:
            continue
        if found and (one.step > found[-1].step or found[0].told - one.told > window_s):
            break
        if not found or one.step < found[-1].step:
            found.append(Mark(one.told, one.step))
    return found[::-1]


def of_run(nodes: Mapping[int, Sequence[NodeSample]], *, ended: bool, now: float | None = None) -> Progress | None:
    """The progress, by the samples of each node in order; None if no rank has told any."""
    attempt = max((series[-1].attempt for series in nodes.values() if series), default=0)
    current = [series for series in nodes.values() if series and series[-1].attempt == attempt]
    told = sorted(
        ((rank, series) for series in current for rank in series[-1].ranks if rank.step is not None),
        key=lambda pair: pair[0].rank,
    )
    if not told:
        return None
    rate = _rate([marks(series, rank.rank) for rank, series in told])
    step = min(rank.step or 0 for rank, _ in told)
    steps = max((rank.steps for rank, _ in told if rank.steps is not None), default=None)
    last = max(rank.told or 0.0 for rank, _ in told)
    left = None
    if steps is not None and rate and not ended:
        passed = max(0.0, (time.time() if now is None else now) - last)
        left = round((steps - step) / rate - passed, 1)
        left = max(0.0, left) if left > 0 or step >= steps else None  # it is late: by how much is not known
    loss = next((rank.loss for rank, _ in told if rank.loss is not None), None)
    return {
        "step": step,
        "steps": steps,
        "loss": loss,
        "rate": rate,
        "eta_s": left,
        "ranks": len(told),
        "time": last,
    }


def _rate(told: Sequence[Sequence[Mark]]) -> float | None:
    """Steps per second, the median of the ranks."""
    rates = [
        (found[-1].step - found[0].step) / (found[-1].told - found[0].told)
        for found in told
        if len(found) > 1 and found[-1].told > found[0].told
    ]
    return float(f"{median(rates):.4g}") if rates else None
