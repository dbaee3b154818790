"""The table for the terminal, and busbw over size with the limit line as SVG."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from comm.links import Limit
    from comm.timing import Row

HEAD = (
    f"{'operation':<17}{'size':>12}{'count':>12}  {'type':<9}{'time us':>12}{'algbw GB/s':>12}{'busbw GB/s':>12}"
    f"{'wrong':>7}"
)
_COLOURS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)


def line(row: Row) -> str:
    """One row of the table under `HEAD`."""
    wrong = "-" if row.wrong is None else str(row.wrong)
    numbers = f"{row.time_s * 1e6:>12.2f}{row.algbw:>12.3f}{row.busbw:>12.3f}{wrong:>7}"
    return f"{row.operation:<17}{row.size_bytes:>12}{row.count:>12}  {row.dtype:<9}{numbers}"


def size_text(size: float) -> str:
    """`8 B`, `64 KiB`, `1 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"


def plot(rows: Sequence[Row], limit: Limit | None, title: str) -> str:
    """Busbw over size on logarithmic axes, with the limit as a dashed line."""
    width, height, left, top, right, bottom = 860, 520, 70, 50, 190, 60
    sizes = [row.size_bytes for row in rows]
    rates = [row.busbw for row in rows if row.busbw > 0] + ([limit.gbytes_per_s] if limit else [])
    low_x, high_x = math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1)
    low_y, high_y = math.floor(math.log10(min(rates, default=0.1))), math.ceil(math.log10(max(rates, default=1)) + 1e-9)
    high_y = max(high_y, low_y + 1)

    def x(size: float) -> float:
        return left + (math.log2(size) - low_x) / (high_x - low_x) * (width - left - right)

    def y(rate: float) -> float:
        return height - bottom - (math.log10(rate) - low_y) / (high_y - low_y) * (height - top - bottom)

    parts = [_text(width / 2, 25, title, size=16, anchor="middle")]
    for power in range(math.ceil(low_x), math.floor(high_x) + 1):
        if power % 3 == 0:
            parts += [_rule((x(2**power), top), (x(2**power), height - bottom), "#e0e0e0")]
            parts += [_text(x(2**power), height - bottom + 18, size_text(2**power), anchor="middle")]
    for power in range(low_y, high_y + 1):
        parts.append(_rule((left, y(10**power)), (width - right, y(10**power)), "#e0e0e0"))
        parts.append(_text(left - 8, y(10**power) + 4, f"{10**power:g}", anchor="end"))
    parts += [
        _text(left, top - 10, "busbw, GB/s"),
        _text((left + width - right) / 2, height - 15, "size", anchor="middle"),
    ]
    for number, name in enumerate(dict.fromkeys(row.operation for row in rows)):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(x(row.size_bytes), y(row.busbw)) for row in rows if row.operation == name and row.busbw > 0]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>' for a, b in points]
        parts.append(_text(width - right + 12, top + 12 + 20 * number, name, colour=colour))
    if limit:
        at = y(limit.gbytes_per_s)
        parts.append(_rule((left, at), (width - right, at), "#000000", "6 4"))
        parts.append(_text(width - right + 4, at + 4, f"{limit.gbytes_per_s:g}: {limit.what}", size=11))
    return _svg(width, height, parts)


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#222222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


def _rule(start: tuple[float, float], end: tuple[float, float], colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    at = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {at} stroke="{colour}"{dashed}/>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    return "\n".join([*head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])
