"""Bandwidth between the nodes."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


T = TypeVar("T")
_FEW_PAIRS = 3
"""Up to this many pairs have no meaningful median."""


def links(reports: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Hosts whose median pair is far below that of other hosts; then single slow pairs between the others."""
    if not all("gbytes_per_s" in report for report in reports):
        return
    node_of = {report["rank"]: report["node"] for report in reports}
    machine = {report["rank"]: report.get("machine", report["node"]) for report in reports}
    hosts = {report["node"]: report["host"] for report in reports}
    pairs = {
        (report["rank"], other): max(report["gbytes_per_s"][other], 1e-9)
        for report in reports
        for other in node_of
        if other > report["rank"] and machine[report["rank"]] != machine[other]
    }
    if len(hosts) < 3 or not pairs:
        return  # of two nodes, either may be the slow one

    own: dict[int, list[float]] = {node: [] for node in hosts}
    for (a, b), rate in pairs.items():
        own[node_of[a]].append(rate)
        own[node_of[b]].append(rate)
    usual: dict[int, float] = {node: statistics.median_high(rates) for node, rates in own.items() if rates}
    bad, middle = _far_below(usual)
    bad = [node for node in bad if max(own[node]) < middle]
    for node in bad:
        reason = f"{usual[node]:.3g} GB/s with most hosts; a host's median is {middle:.3g}"
        yield Finding(
            node, "links", "fail", reason, "its cable, port or NIC: see ethtool, and the switch's error counters"
        )
    others = {(a, b): rate for (a, b), rate in pairs.items() if not {node_of[a], node_of[b]} & set(bad)}
    slow, middle = _far_below(others) if len(others) > _FEW_PAIRS else ([], 0.0)
    for a, b in slow:
        reason = f"{pairs[a, b]:.3g} GB/s to {hosts[node_of[b]]}, {pairs[a, b] / middle:.0%} of the median pair"
        yield Finding(node_of[a], "links", "warn", reason, "the path between these two: a link between their switches")


def _far_below(rates: Mapping[T, float]) -> tuple[list[T], float]:
    """Keys whose rate is below half of the median and unusually far from it, slowest first; and the median."""
    if len(rates) < 3:
        return [], 0.0
    middle = statistics.median_high(rates.values())
    spread = statistics.median_low(abs(math.log(rate / middle)) for rate in rates.values())
    far = {key: rate for key, rate in rates.items() if math.log(middle / rate) > max(math.log(2), 4 * spread)}
    return sorted(far, key=lambda key: far[key]), middle


CHECK = Check(10, lambda told: links(told.reports), needs="gbytes_per_s")
