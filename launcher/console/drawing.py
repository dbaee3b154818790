"""What rich draws, on a terminal alone; imported where something is drawn, as rich takes 40 ms.

Whatever others wrote is made `Text` of what `escapes.plain` leaves of it: rich reads no markup in that, and no escape is in it.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from rich._spinners import SPINNERS
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from launcher import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

_BAR = 20
_LONG = 16
"""A column may become as narrow as this."""

_FRAMES = str(SPINNERS["dots"]["frames"])
_NAMES = ("RUN", "TASK", "HOST", "NODE", "COMMAND", "SETTING", "VALUE", "FILE", "VARIABLE", "CLUSTER")
"""Columns of names, whose words mean nothing else."""


def console(fd: int, at_most: int | None = None) -> Console:
    """One that renders for that terminal, and writes nothing itself: `output` does."""
    return Console(
        file=io.StringIO(),  # what it captures it writes as well, as nothing: an unbuffered stdout in a stopped terminal waits
        width=min(output.columns(fd), at_most or sys.maxsize),
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def rendered(fd: int, shown: RenderableType) -> str:
    """What is drawn there, with the escapes of its colours; no line ends in blanks."""
    drawer = console(fd)
    with drawer.capture() as capture:
        drawer.print(shown)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def table(header: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str], fd: int) -> str:
    """Columns that fit the terminal: long cells go on in their next line; where that would be no table, a row is a list.

    The cells are plain; `styles` are those of words that mean something, wherever no names stand.
    """
    styled = [
        [Text(cell, "" if name in _NAMES else styles.get(cell, "")) for name, cell in zip(header, row, strict=True)]
        for row in rows
    ]
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    least = [widths[0], *(min(width, _LONG) for width in widths[1:])]  # the first is what a row is called by: whole, to be copied
    needed = sum(least) + 2 * (len(widths) - 1)
    if needed > output.columns(fd):
        return rendered(fd, Group(*(part for row in styled for part in (_listed(header, row), Text()))))
    drawn = Table(box=None, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, width, minimum in zip(header, widths, least, strict=True):
        drawn.add_column(Text(name), overflow="fold", min_width=minimum, no_wrap=width == minimum)
    for row in styled:
        drawn.add_row(*row)
    return rendered(fd, drawn)


def _listed(header: Sequence[str], row: Sequence[Text]) -> Table:
    """One row, each of its columns a line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, cell in zip(header, row, strict=True):
        if cell.plain:
            grid.add_row(Text(name, "bold"), cell)
    return grid


def wait_line(text: str, waited_s: float, part: tuple[int, int] | None, frame: int) -> str:
    """A spinner, what is waited for, a bar and the time; one line, without its end. The text is plain."""
    width = output.columns(output.STDERR) - 1  # the cursor stays in the line
    minutes, seconds = divmod(int(waited_s), 60)
    since = f" {minutes}:{seconds:02}" if minutes else f" {seconds} s"
    bar = Text()
    if part is not None and part[1] > 0:
        full = _BAR * min(part[0], part[1]) // part[1]
        bar = Text.assemble(" ", ("━" * full, "green"), ("━" * (_BAR - full), "dim"))
    said = Text(text)
    said.truncate(max(1, width - 2 - len(since)), overflow="ellipsis")
    if said.cell_len + bar.cell_len + 2 + len(since) > width:
        bar = Text()
    line = Text.assemble((_FRAMES[frame % len(_FRAMES)], "cyan"), " ", said, bar, (since, "dim"))
    drawer = console(output.STDERR)
    with drawer.capture() as capture:
        drawer.print(line, end="", no_wrap=True, overflow="crop", crop=True)
    return capture.get()
