"""The picture of slow links: coloured cells on a terminal, numbers or shades elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.doctor import heat_map
from launcher.system import escapes

if TYPE_CHECKING:
    from launcher.doctor.heat_map import Pairs

_COLOURS = ("red", "yellow", "cyan", "green")
"""From slow to fast."""


def text(pairs: Pairs) -> str:
    """Bandwidth and latency of every pair of nodes."""
    if not output.draws():
        return heat_map.terminal(pairs)
    from rich.table import Table
    from rich.text import Text

    from launcher.console import drawing

    names = [escapes.plain(name) for name in pairs.names]
    numbers = max(map(len, names)) + 9 * len(names) <= output.columns()
    parts = []
    for title, values, good in heat_map.pictures(pairs):
        low, high = map(heat_map.number, heat_map.span(values))
        grid = Table.grid(padding=(0, int(numbers), 0, 0))
        grid.add_column(justify="right")
        if numbers:
            grid.add_row("", *(Text(name[-8:], "bold") for name in names))
        for a, row in enumerate(values):
            cells = [
                Text(
                    heat_map.number(value).rjust(8) if numbers else "  ",
                    f"black on {_COLOURS[round(3 * good(value))]}",
                )
                if a != b
                else Text("-".rjust(8) if numbers else " \\")
                for b, value in enumerate(row)
            ]
            grid.add_row(Text(f"{names[a]} "), *cells)
        parts.append(f"{title}: {low} to {high}\n" + escapes.ours(drawing.rendered(output.STDOUT, grid)))
    return "\n".join(parts)
