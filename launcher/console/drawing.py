"""Drawing by rich, on a terminal only. Imported where something is drawn, as importing rich takes 40 ms.

Foreign text becomes a `Text` of what `escapes.plain` returns: it contains no escapes, and rich reads no markup in it.
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
_LONG, _SHORT = 16, 8
"""The least width that a column may shrink to, and one whose cells are cut."""

_FRAMES = str(SPINNERS["dots"]["frames"])
_NAMES = ("RUN", "TASK", "HOST", "NODE", "COMMAND", "SETTING", "VALUE", "FILE", "VARIABLE", "CLUSTER")
"""Columns of names, which are not styled even where they equal a styled word."""


def console(fd: int, at_most: int | None = None) -> Console:
    """A rich console that renders for that terminal. It writes nothing itself: `output` does."""
    return Console(
        file=io.StringIO(),  # captured prints still write an empty text, which blocks on stdout in a stopped terminal
        width=min(output.columns(fd), at_most or sys.maxsize),
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def rendered(fd: int, shown: RenderableType) -> str:
    """The drawing for that stream, with escapes for colours and without trailing blanks."""
    drawer = console(fd)
    with drawer.capture() as capture:
        drawer.print(shown)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str], fd: int, *, cut: bool = False
) -> str:
    """Columns that fit the terminal: long cells wrap, and rows become lists if the terminal is too narrow for a table.

    The cells are plain. `styles` apply to whole cells, except in columns of names. `cut`: only the last column gives
    way, and its cells are cut.
    """
    styled = [
        [Text(cell, "" if name in _NAMES else styles.get(cell, "")) for name, cell in zip(header, row, strict=True)]
        for row in rows
    ]
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    # The first column identifies the row: it stays whole, so that it can be copied.
    least = [widths[0], *(min(width, _LONG) for width in widths[1:])]
    if cut:
        least = [*widths[:-1], min(widths[-1], _SHORT)]
    needed = sum(least) + 2 * (len(widths) - 1)
    if needed > output.columns(fd):
        return rendered(fd, Group(*(part for row in styled for part in (_listed(header, row, cut=cut), Text()))))
    if cut:
        for row in styled:
            row[-1].truncate(output.columns(fd) - needed + least[-1], overflow="ellipsis")
    drawn = Table(box=None, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, width, minimum in zip(header, widths, least, strict=True):
        drawn.add_column(Text(name), overflow="fold", min_width=minimum, no_wrap=width == minimum)
    for row in styled:
        drawn.add_row(*row)
    return rendered(fd, drawn)


def _listed(header: Sequence[str], row: Sequence[Text], *, cut: bool) -> Table:
    """One row as a list, a line for each column. `cut`: the last cell is cut to one line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    if cut:
        room = output.columns() - max(map(cell_len, header)) - 2
        row[-1].truncate(max(1, room), overflow="ellipsis")
    for name, cell in zip(header, row, strict=True):
        if cell.plain:
            grid.add_row(Text(name, "bold"), cell)
    return grid


def wait_line(text: str, waited_s: float, part: tuple[int, int] | None, frame: int) -> str:
    """A spinner, the plain text, a progress bar and the time, in one line without a newline."""
    width = output.columns(output.STDERR) - 1  # leaves room for the cursor
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
