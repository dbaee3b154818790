"""Bandwidth and latency of each pair of nodes, and their picture, which the bundled scripts draw of ranks as well."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from launcher.system import install
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from comm import heat_map as picture
else:
    picture = install.bundled("comm/heat_map.py")

WITH_NUMBERS = picture.WITH_NUMBERS
terminal, svg, pictures = picture.terminal, picture.svg, picture.pictures
number, span = picture.number, picture.span


@dataclass(frozen=True, slots=True)
class Pairs:
    """Values of each pair of nodes, `[one][other]`: the median over their ranks; 0 on the diagonal."""

    names: list[str]
    gbytes_per_s: list[list[float]]
    latency_s: list[list[float]]


def of_nodes(reports: Sequence[Mapping[str, Any]], hosts: Mapping[int, str]) -> Pairs | None:
    """The pairs in the reports of all ranks; None if they were not measured."""
    if len(hosts) < 2 or not reports or any("gbytes_per_s" not in report for report in reports):
        return None
    nodes = sorted({report["node"] for report in reports})
    by_rank = {report["rank"]: report for report in reports}

    def matrix(what: str) -> list[list[float]]:
        found: dict[tuple[int, int], list[float]] = {}
        for report in reports:
            for other, value in enumerate(report[what]):
                if other in by_rank:
                    found.setdefault((report["node"], by_rank[other]["node"]), []).append(value)
        return [[0.0 if a == b else statistics.median(found[a, b]) for b in nodes] for a in nodes]

    return Pairs([hosts[node] for node in nodes], matrix("gbytes_per_s"), matrix("latency_s"))
