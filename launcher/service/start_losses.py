"""What the time of a start-up was lost on."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.console import summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.results.report import NodeStart, Observation, Startup

_MEANING = {
    "queue": "before the first agent started",
    "agent": "until its agent started",
    "import": "importing what workers need",
    "rendezvous": "waiting for the other nodes",
    "workers": "starting the workers",
    "first line": "in the script, before its first line of output",
}
_SLOW_TIMES, _SLOW_S = 2.0, 3.0
"""A node is slow in a phase that took it this many times as long as the median, and this much longer."""


class _Length(NamedTuple):
    seconds: float
    node: int
    host: str


def startup(nodes: list[NodeStart]) -> Startup | None:
    """The start-up as a whole; None if no agent has started."""
    edges = [(phase["start"], phase["end"]) for node in nodes for phase in node["phases"]]
    if not edges:
        return None
    took = max(end for _, end in edges) - min(start for start, _ in edges)
    return {"took_s": round(took, 3), "slowest": _slowest(nodes, took), "nodes": nodes}


def _slowest(nodes: Sequence[NodeStart], took: float) -> str:
    """The phase that took longest, and the node that kept the others waiting."""
    lengths = _lengths(nodes)
    name = max(lengths, key=lambda phase: median(each.seconds for each in lengths[phase]))
    usual = median(each.seconds for each in lengths[name])
    text = f"{summary.duration(usual)} of {summary.duration(took)} passed {_MEANING[name]}"
    slow = [(max(each), phase) for phase, each in lengths.items() if phase != "rendezvous"]
    for worst, phase in sorted(slow, reverse=True):
        others = median(each.seconds for each in lengths[phase])
        if _is_slow(worst.seconds, others):
            where = f"{worst.host} (node {worst.node}) took {summary.duration(worst.seconds)} {_MEANING[phase]}"
            return f"{text}. {where}, the median is {summary.duration(others)}"
    return text


def _lengths(nodes: Iterable[NodeStart]) -> dict[str, list[_Length]]:
    found = defaultdict[str, list[_Length]](list)
    for node in nodes:
        for phase in node["phases"]:
            found[phase["name"]].append(_Length(phase["end"] - phase["start"], node["node"], node["host"]))
    return found


def _is_slow(seconds: float, usual: float) -> bool:
    return seconds > usual * _SLOW_TIMES and seconds > usual + _SLOW_S


def observed(nodes: Sequence[NodeStart]) -> list[Observation]:
    """Nodes that started more slowly than the others, and why."""
    found: list[Observation] = []
    for name, lengths in _lengths(nodes).items():
        usual = median(each.seconds for each in lengths)
        slow = sorted(each for each in lengths if _is_slow(each.seconds, usual)) if name != "rendezvous" else []
        if slow:
            worst = slow[-1]
            found.append({
                "level": "notice",
                "title": f"Slow start of {'one node' if len(slow) == 1 else f'{len(slow)} nodes'}",
                "detail": f"{worst.host} (node {worst.node}) took {summary.duration(worst.seconds)} {_MEANING[name]}, "
                f"the median of all nodes is {summary.duration(usual)}",
                "nodes": sorted(each.node for each in slow),
            })  # fmt: skip
    return found
