"""Tables: columns aligned with blanks on a pipe, drawn by rich on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import ENDS, Failure
from launcher.system import escapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


STYLES = {
    "success": "green",
    "failed": "red",
    "lost": "yellow",
    **{str(end): "yellow" for end in ENDS},
    Failure.TIMEOUT.value: "red",
    "running": "cyan",
    "starting": "cyan",
    "stopping": "cyan",
    "OK": "green",
    "warn": "yellow",
    "FAIL": "red",
}
"""Colours of states, results and doctor's marks."""


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], fd: int = output.STDOUT, *, cut: bool = False
) -> str:
    """The table for that stream. Control characters are escaped, so that on a pipe each row is a line.

    `cut`: on a terminal, cells of the last column are cut to its width, and nothing wraps.
    """
    plain = escapes.plain
    cells = [[*map(plain, header)], *(["-" if value is None else plain(value) for value in row] for row in rows)]
    if output.draws(fd):
        from launcher.console import drawing

        return escapes.ours(drawing.table(cells[0], cells[1:], STYLES, fd, cut=cut))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"
