"""The picture of slow links: bandwidth and latency of each pair, of nodes or of ranks, as text and as SVG. No I/O.

The launcher draws with it, too, so it needs neither torch nor its neighbours.
"""

from __future__ import annotations

from html import escape
from typing import Callable, List, Protocol, Tuple

_SHADES = " .:-=+*#%@"
WITH_NUMBERS = 12
"""More names than this are shown as shades."""

_LEFT, _TOP, _CELL = 120, 80, 36

Values = List[List[float]]
"""By pair, [one][other]; 0 on the diagonal."""


class Pairs(Protocol):
    """Bandwidth in GB/s and latency in seconds of each pair."""

    @property
    def names(self) -> List[str]:
        """What the rows and columns stand for."""

    @property
    def gbytes_per_s(self) -> Values:
        """Bandwidth."""

    @property
    def latency_s(self) -> Values:
        """Latency."""


def terminal(pairs: Pairs) -> str:
    """The picture in text: numbers, or shades for many names. Dark is fast."""
    parts = []
    for title, values, good in pictures(pairs):
        width = max(map(len, pairs.names))
        low, high = span(values)
        lines = [f"{title}: {number(low)} to {number(high)}"]
        if len(pairs.names) <= WITH_NUMBERS:
            lines.append(" " * width + "".join(f" {name[-8:]:>8}" for name in pairs.names))
            cells = [
                [f"{'-' if a == b else number(value):>8}" for b, value in enumerate(row)] for a, row in _rows(values)
            ]
        else:
            cells = [
                ["\\" if a == b else _SHADES[round(9 * good(value))] for b, value in enumerate(row)]
                for a, row in _rows(values)
            ]
        between = " " if len(pairs.names) <= WITH_NUMBERS else ""
        lines += [f"{name:>{width}} {between.join(row)}" for name, row in zip(pairs.names, cells)]  # noqa: B905 - Python 3.9
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def svg(pairs: Pairs, title: str) -> str:
    """The picture as SVG: bandwidth left, latency right. Dark is good in both, and each cell's tooltip is its value."""
    count = len(pairs.names)
    cell = max(6, min(_CELL, 600 // count))
    side = cell * count
    parts = [_text(_LEFT, 25, title, 16)]
    for place, (what, values, good) in enumerate(pictures(pairs)):
        at = _LEFT + place * (side + _LEFT + 20)
        low, high = span(values)
        parts.append(_text(at, 50, f"{what}: {number(low)} to {number(high)}", 12))
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


def pictures(pairs: Pairs) -> List[Tuple[str, Values, Callable[[float], float]]]:
    """Title, values, and a function that rates a value from 0 to 1 (best)."""
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


def number(value: float) -> str:
    """Three significant digits, without an exponent where a value is large."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def span(values: Values) -> Tuple[float, float]:
    """The lowest and the highest value of a pair."""
    flat = [value for a, row in _rows(values) for b, value in enumerate(row) if a != b]
    return min(flat, default=0.0), max(flat, default=0.0)


def _rows(values: Values) -> List[Tuple[int, List[float]]]:
    return list(enumerate(values))


def _text(x: float, y: float, text: str, size: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}">{escape(text)}</text>'
