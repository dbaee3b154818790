"""Samples of all nodes as curves: the same times for all, few enough to draw, with the nodes that stand out."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.results.report import Curve, Point, ProgressCurve, Series
    from launcher.runs.samples import NodeSample

POINTS = 160
"""At most so many values of each node."""

_LEAST_NODES, _SPREADS, _LEAST_PART = 4, 6.0, 0.1
"""Of so many nodes, one stands out that is further from the median than this many times the usual distance, and than
this part of the largest value."""


class _Kind(NamedTuple):
    """What is measured."""

    name: str
    title: str
    unit: str
    of: Callable[[NodeSample], float | None]


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _part(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else 100.0 * value / whole


_KINDS = (
    _Kind("gpu", "GPU use", "%", lambda sample: mean([gpu.use for gpu in sample.gpus])),
    _Kind("gpu_memory", "GPU memory", "B", lambda sample: _sum([gpu.memory_bytes for gpu in sample.gpus])),
    _Kind("gpu_power", "GPU power", "W", lambda sample: _sum([gpu.power_w for gpu in sample.gpus])),
    _Kind("cpu", "CPU use", "%", lambda sample: _part(sample.cpu, sample.cpus)),
    _Kind("memory", "Memory", "B", lambda sample: sample.memory_bytes),
    _Kind("rank_memory", "Memory of the ranks", "B", lambda sample: _sum([rank.memory_bytes for rank in sample.ranks])),
    _Kind("received", "Network, received", "B/s", lambda sample: sample.received),
    _Kind("sent", "Network, sent", "B/s", lambda sample: sample.sent),
    _Kind("rdma_received", "RDMA, received", "B/s", lambda sample: sample.rdma_received),
    _Kind("rdma_sent", "RDMA, sent", "B/s", lambda sample: sample.rdma_sent),
)


def series(nodes: Mapping[int, Sequence[NodeSample]]) -> list[Series]:
    """Each measurement that any node has, over the time of all samples."""
    every = [sample.time for samples in nodes.values() for sample in samples]
    if len(every) < 2 or max(every) <= min(every):
        return []
    count = min(POINTS, max(map(len, nodes.values())))
    first, width = min(every), (max(every) - min(every)) / max(1, count - 1)
    times = [round(first + number * width, 1) for number in range(count)]
    found: list[Series] = []
    for kind in _KINDS:
        curves = [_curve(node, samples, times, kind) for node, samples in sorted(nodes.items())]
        if any(value is not None for curve in curves for value in curve["values"]):
            _mark_outliers(curves)
            found.append({"name": kind.name, "title": kind.title, "unit": kind.unit, "times": times, "nodes": curves})
    return found


def _curve(node: int, samples: Sequence[NodeSample], times: Sequence[float], kind: _Kind) -> Curve:
    """The mean of the samples nearest to each time; null where there are none."""
    edges = [(left + right) / 2 for left, right in pairwise(times)]
    cells: list[list[float]] = [[] for _ in times]
    for sample in samples:
        value = kind.of(sample)
        if value is not None:
            cells[bisect_left(edges, sample.time)].append(value)
    values = [_rounded(sum(cell) / len(cell)) if cell else None for cell in cells]
    return {"node": node, "values": values, "outlier": False}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _mark_outliers(curves: Sequence[Curve]) -> None:
    """Mark the nodes whose mean over the run is far from that of the others."""
    means = {curve["node"]: value for curve in curves if (value := mean(curve["values"])) is not None}
    if len(means) < _LEAST_NODES:
        return
    middle = median(means.values())
    usual = median(abs(value - middle) for value in means.values())
    least = _LEAST_PART * max(map(abs, means.values()))
    for curve in curves:
        distance = abs(means.get(curve["node"], middle) - middle)
        curve["outlier"] = distance > _SPREADS * usual and distance > least


def progress(nodes: Mapping[int, Sequence[NodeSample]]) -> list[ProgressCurve]:
    """What the first rank that told anything has told."""
    told: dict[int, list[Point]] = {}
    for samples in nodes.values():
        for sample in samples:
            for rank in sample.ranks:
                if rank.step is not None or rank.loss is not None:
                    when = sample.time if rank.told is None else rank.told
                    told.setdefault(rank.rank, []).append({"time": when, "step": rank.step, "loss": rank.loss})
    if not told:
        return []
    first = min(told, key=lambda each: (all(point["loss"] is None for point in told[each]), each))
    points = sorted({point["time"]: point for point in told[first]}.values(), key=lambda point: point["time"])
    return [{"rank": first, "points": points}]
