"""The picture of slow links: bandwidth and latency of every pair of nodes, for the terminal and as SVG. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SHADES = " .:-=+*#%@"
_WITH_NUMBERS = 12
"""More nodes than these are shown as shades."""

_LEFT, _TOP, _CELL = 120, 80, 36


@dataclass(frozen=True, slots=True)
class Pairs:
    """Of each pair of nodes, [one][other]: the median over its ranks; 0 where there is none."""

    names: list[str]
    gbytes_per_s: list[list[float]]
    latency_s: list[list[float]]


def of_nodes(reports: Sequence[Mapping[str, Any]], hosts: Mapping[int, str]) -> Pairs | None:
    """Out of the reports of all ranks; None where pairs of nodes were not measured."""
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


def terminal(pairs: Pairs) -> str:
    """Numbers, or shades where there are many nodes: dark is fast."""
    parts = []
    for title, values, good in pictures(pairs):
        width = max(map(len, pairs.names))
        low, high = span(values)
        lines = [f"{title}: {low:.3g} to {high:.3g}"]
        if len(pairs.names) <= _WITH_NUMBERS:
            lines.append(" " * width + "".join(f" {name[-8:]:>8}" for name in pairs.names))
            cells = [[f"{'-' if a == b else format(value, '.3g'):>8}" for b, value in enumerate(row)] for a, row in _rows(values)]
        else:
            cells = [
                ["\\" if a == b else _SHADES[round(9 * good(value))] for b, value in enumerate(row)] for a, row in _rows(values)
            ]
        between = " " if len(pairs.names) <= _WITH_NUMBERS else ""
        lines += [f"{name:>{width}} {between.join(row)}" for name, row in zip(pairs.names, cells, strict=True)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def svg(pairs: Pairs, title: str) -> str:
    """Bandwidth left, latency right; dark is good in both, and each cell tells its value."""
    count = len(pairs.names)
    cell = max(6, min(_CELL, 600 // count))
    side = cell * count
    parts = [_text(_LEFT, 25, title, 16)]
    for number, (what, values, good) in enumerate(pictures(pairs)):
        at = _LEFT + number * (side + _LEFT + 20)
        low, high = span(values)
        parts.append(_text(at, 50, f"{what}: {low:.3g} to {high:.3g}", 12))
        for a, row in _rows(values):
            y = _TOP + a * cell
            parts.append(_text(at - 6, y + cell * 0.7, pairs.names[a], min(11, cell), "end"))
            for b, value in enumerate(row):
                shade = "#ffffff" if a == b else f"hsl(210,60%,{92 - 62 * good(value):.0f}%)"
                about = f"<title>{escape(f'{pairs.names[a]} - {pairs.names[b]}: {value:.4g}')}</title>"
                size = f'width="{cell - 1}" height="{cell - 1}"'
                parts.append(f'<rect x="{at + b * cell}" y="{y}" {size} fill="{shade}">{about}</rect>')
    width, height = 2 * (side + _LEFT + 20), _TOP + side + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def pictures(pairs: Pairs) -> list[tuple[str, list[list[float]], Callable[[float], float]]]:
    """Title, values and how good a value is, from 0 to 1."""
    latency = [[value * 1e6 for value in row] for row in pairs.latency_s]
    (slow, fast), (short, long) = span(pairs.gbytes_per_s), span(latency)
    return [
        (
            "bandwidth of each pair, GB/s",
            pairs.gbytes_per_s,
            lambda value: (value - slow) / (fast - slow) if fast > slow else 1.0,
        ),
        ("latency of each pair, us", latency, lambda value: (long - value) / (long - short) if long > short else 1.0),
    ]


def span(values: list[list[float]]) -> tuple[float, float]:
    """The lowest and the highest value of two nodes."""
    flat = [value for a, row in _rows(values) for b, value in enumerate(row) if a != b]
    return min(flat), max(flat)


def _rows(values: list[list[float]]) -> list[tuple[int, list[float]]]:
    return list(enumerate(values))


def _text(x: float, y: float, text: str, size: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}">{escape(text)}</text>'
