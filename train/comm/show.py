"""Tables for the terminal and pictures as SVG: busbw over size with the limit line, and a heat map of pairs."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from comm.links import Limit
    from comm.pairs import Matrix
    from comm.timing import Row

HEAD = f"{'operation':<17}{'size':>12}{'count':>12}  {'type':<9}{'time us':>12}{'algbw GB/s':>12}{'busbw GB/s':>12}{'wrong':>7}"
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
_SHADES = " .:-=+*#%@"


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
    """Busbw over size, both logarithmic; the limit as a dashed line."""
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
    parts += [_text(left, top - 10, "busbw, GB/s"), _text((left + width - right) / 2, height - 15, "size", anchor="middle")]
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


def heat_map(matrix: Matrix, title: str) -> str:
    """Bandwidth left, latency right; dark is good in both."""
    count = len(matrix.names)
    cell = max(8, min(40, 480 // max(count, 1)))
    side, left, top = cell * count, 110, 90
    parts = [_text(left, 25, title, size=16)]
    microseconds = [[time_s * 1e6 for time_s in row] for row in matrix.latency_s]
    pictures = (("bandwidth, GB/s", matrix.gbytes_per_s, False), ("latency, us", microseconds, True))
    for number, (what, values, small_is_good) in enumerate(pictures):
        at = left + number * (side + 140)
        flat = [values[a][b] for a in range(count) for b in range(count) if a != b] or [1.0]
        low, high = min(flat), max(flat)
        parts.append(_text(at, 50, f"{what}: {low:.3g} to {high:.3g}"))
        for a in range(count):
            parts.append(_text(at - 5, top + a * cell + cell * 0.65, matrix.names[a], size=10, anchor="end"))
            for b in range(count):
                good = 0.0 if a == b else (values[a][b] - low) / (high - low or 1)
                good = 1 - good if small_is_good else good
                shade = "#ffffff" if a == b else f"hsl(210,60%,{92 - 62 * good:.0f}%)"
                about = f"{matrix.names[a]} - {matrix.names[b]}: {values[a][b]:.4g}"
                parts.append(
                    f'<rect x="{at + b * cell}" y="{top + a * cell}" width="{cell - 1}" height="{cell - 1}" fill="{shade}">'
                    f"<title>{escape(about)}</title></rect>"
                )
    return _svg(2 * side + 300, top + side + 40, parts)


def terminal_map(matrix: Matrix) -> list[str]:
    """The bandwidths as shades, with the numbers where there is room for them."""
    count = len(matrix.names)
    flat = [matrix.gbytes_per_s[a][b] for a in range(count) for b in range(count) if a != b] or [1.0]
    high, width = max(flat), max(map(len, matrix.names))
    lines = [f"bandwidth of each pair, GB/s ({min(flat):.3g} to {high:.3g}), then latency in us"]
    if count > 12:
        return [*lines, *(f"{matrix.names[a]:>{width}} {_shades(matrix.gbytes_per_s[a], a, high)}" for a in range(count))]
    head = " ".join(f"{name[-7:]:>7}" for name in matrix.names)
    lines.append(f"{'':>{width}} {head}")
    for values, scale in ((matrix.gbytes_per_s, 1.0), (matrix.latency_s, 1e6)):
        for a in range(count):
            cells = " ".join(f"{'-':>7}" if a == b else f"{values[a][b] * scale:>7.3g}" for b in range(count))
            lines.append(f"{matrix.names[a]:>{width}} {cells}")
        lines.append("")
    return lines[:-1]


def _shades(row: Sequence[float], own: int, high: float) -> str:
    return "".join("\\" if b == own else _SHADES[min(9, int(value / high * 9.99))] for b, value in enumerate(row))


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _rule(start: tuple[float, float], end: tuple[float, float], colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    at = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {at} stroke="{colour}"{dashed}/>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    return "\n".join([*head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])
