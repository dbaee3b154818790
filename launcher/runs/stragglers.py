"""Ranks and hosts that differ from the others by more than is usual for them.

What is usual is robust: the median of all, and the median absolute deviation from it (MAD). One that is odd moves
neither, and in a run in which all differ, none is odd.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal

from launcher.agent.named_tuple import NamedTuple
from launcher.runs.progress import WINDOW_S, marks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.results.progress import Finding
    from launcher.runs.samples import NodeSample, RankSample

    Kind = Literal["slow", "busy", "idle_gpu"]

_SIGMAS = 5.0
_TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution in MADs."""

_FEWEST = 3
"""Among fewer ranks there are no others; and fewer intervals say nothing."""

_SLOWER = 0.15
"""Below this share of the median, a difference does not matter."""

_BUSIER_CPUS = 0.3
_IDLER_PERCENT = 25.0


class _Value(NamedTuple):
    node: int
    rank: int
    value: float
    spread: float = 0.0
    """How much it usually varies."""


def find(nodes: Mapping[int, Sequence[NodeSample]], hosts: Sequence[str]) -> list[Finding]:
    """What is odd in the last minutes of these samples, the worst first."""
    recent = {node: _recent(series) for node, series in nodes.items() if series}
    found = [*_slow(recent), *_busy(recent), *_idle_gpus(recent)]
    found.sort(key=lambda pair: -pair[0])
    merged = _by_host([finding for _, finding in found], recent)
    return [{**one, "host": hosts[one["node"]] if one["node"] < len(hosts) else ""} for one in merged]


def _recent(series: Sequence[NodeSample]) -> list[NodeSample]:
    end, attempt = series[-1].time, series[-1].attempt
    return [sample for sample in series if sample.attempt == attempt and sample.time >= end - WINDOW_S]


def _slow(nodes: Mapping[int, Sequence[NodeSample]]) -> list[tuple[float, Finding]]:
    """Ranks that take longer for a step than the others."""
    values = []
    for node, series in nodes.items():
        for rank in series[-1].ranks:
            told = marks(series, rank.rank)
            each = [(b.told - a.told) / (b.step - a.step) for a, b in pairwise(told)]
            if len(each) >= _FEWEST:
                usual = median(each)
                values.append(_Value(node, rank.rank, usual, median(abs(one - usual) for one in each)))
    return _above(
        values, "slow", lambda usual: _SLOWER * usual,
        "rank {rank} takes {value:.3g} s for a step, the others {usual:.3g} s",
        "intervals between the progress of {count} ranks",
    )  # fmt: skip


def _busy(nodes: Mapping[int, Sequence[NodeSample]]) -> list[tuple[float, Finding]]:
    """Ranks that compute while the others wait for them, as in a collective: all are slow, but one is why."""
    values = _means(nodes, lambda rank: rank.cpu)
    return _above(
        values, "busy", lambda usual: max(_BUSIER_CPUS, usual),
        "rank {rank} keeps {value:.2f} CPUs busy, the others {usual:.2f}: they may wait for it",
        "CPU time of {count} ranks",
    )  # fmt: skip


def _idle_gpus(nodes: Mapping[int, Sequence[NodeSample]]) -> list[tuple[float, Finding]]:
    """GPUs that do less than the others; a rank has the GPU of its place on the node, if there is one for each."""
    values = []
    for node, series in nodes.items():
        ranks = series[-1].ranks
        for place, rank in enumerate(ranks):
            if len(series[-1].gpus) != len(ranks):
                break
            used = [sample.gpus[place].use for sample in series if len(sample.gpus) == len(ranks)]
            known = [100.0 - use for use in used if use is not None]
            if len(known) >= _FEWEST:
                values.append(_Value(node, rank.rank, sum(known) / len(known)))
    return _above(
        values, "idle_gpu", lambda _: _IDLER_PERCENT,
        "the GPU of rank {rank} is idle for {value:.0f} % of the time, the others for {usual:.0f} %",
        "use of {count} GPUs",
    )  # fmt: skip


def _means(nodes: Mapping[int, Sequence[NodeSample]], of: Callable[[RankSample], float | None]) -> list[_Value]:
    """The mean of a value of each rank that has it in enough samples."""
    values: dict[tuple[int, int], list[float]] = {}
    for node, series in nodes.items():
        for sample in series:
            for rank in sample.ranks:
                if (value := of(rank)) is not None:
                    values.setdefault((node, rank.rank), []).append(value)
    return [_Value(*place, sum(each) / len(each)) for place, each in values.items() if len(each) >= _FEWEST]


def _above(
    values: Sequence[_Value], kind: Kind, least: Callable[[float], float], message: str, source: str
) -> list[tuple[float, Finding]]:
    """Those that are above the others by more than is usual, and by at least `least` of the median; with how much."""
    if len(values) < _FEWEST:
        return []
    usual = median(each.value for each in values)
    spread = max(median(abs(each.value - usual) for each in values), median(each.spread for each in values))
    limit = usual + max(_SIGMAS * _TO_SIGMA * spread, least(usual))
    found: list[tuple[float, Finding]] = []
    for each in values:
        if each.value > limit:
            text = message.format(rank=each.rank, value=each.value, usual=usual)
            one: Finding = {
                "kind": kind, "node": each.node, "host": "", "rank": each.rank, "message": text,
                "source": source.format(count=len(values)),
            }  # fmt: skip
            found.append((each.value / max(usual, 1e-9), one))
    return found


def _by_host(found: Sequence[Finding], nodes: Mapping[int, Sequence[NodeSample]]) -> list[Finding]:
    """One finding for a host of which all ranks are odd in the same way."""
    first: dict[tuple[str, int], Finding] = {}
    for one in found:
        first.setdefault((one["kind"], one["node"]), one)
    counts = Counter((one["kind"], one["node"]) for one in found)
    kept: list[Finding] = []
    for one in found:
        same, ranks = (one["kind"], one["node"]), len(nodes[one["node"]][-1].ranks)
        if counts[same] < ranks or ranks == 1:
            kept.append(one)
        elif one is first[same]:
            text = f"all {ranks} ranks of the host; {one['message']}"
            kept.append({**one, "rank": None, "message": text})
    return kept
