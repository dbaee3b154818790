"""Help pages: plain lines on a pipe, drawn by rich on a terminal. Both are made from the same sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_WIDTH = 110
_MAX_LEFT = 34
_TIED = "\xa0"
"""Stands for a space at which a line does not wrap."""


class Section(NamedTuple):
    """A title with rows: what the user writes, what it means, and notes."""

    title: str
    rows: list[tuple[str, str, str]]


class HelpPage(NamedTuple):
    """A whole help page."""

    usage: str
    paragraphs: list[str]
    examples: list[str]
    sections: list[Section]


def show(page: HelpPage) -> None:
    """Print the page."""
    if output.draws():
        output.text(_drawn(page))
    else:
        output.text("\n".join(_plain(page)).replace(_TIED, " ") + "\n")


def _drawn(page: HelpPage) -> str:
    from rich.table import Table
    from rich.text import Text

    from launcher.console import drawing

    console = drawing.console(output.STDOUT, MAX_WIDTH)
    with console.capture() as capture:
        console.print(Text.assemble(("Usage: ", "bold"), page.usage))
        for paragraph in page.paragraphs:
            console.print(Text(f"\n{paragraph}"))
        if page.examples:
            console.print(Text("\nExamples:", "bold"))
            for example in page.examples:
                console.print(Text.assemble("  ", (example, "green")), soft_wrap=True)
        for section in page.sections:
            console.print(Text(f"\n{section.title}:", "bold"))
            grid = Table.grid(padding=(0, 2), pad_edge=False)
            grid.add_column(overflow="fold", max_width=max(20, console.width // 3))
            grid.add_column(overflow="fold")
            for name, text, notes in section.rows:
                grid.add_row(Text(f"  {name}", "cyan"), Text.assemble(text, " " * bool(notes), (notes, "dim")))
            console.print(grid)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _plain(page: HelpPage) -> Iterable[str]:
    width = min(output.columns(), MAX_WIDTH)
    yield from _wrapped(f"Usage: {page.usage}", width, 0, 7)
    for paragraph in page.paragraphs:
        yield ""
        yield from _wrapped(paragraph, width, 2)
    if page.examples:
        yield from ("", "Examples:", *(f"  {example}" for example in page.examples))
    for section in page.sections:
        yield from ("", f"{section.title}:")
        left = min(max(len(name) for name, *_ in section.rows), _MAX_LEFT) + 2
        for name, text, notes in section.rows:
            lines = list(_wrapped(f"{text} {notes.replace(' ', _TIED)}", width, left + 2)) or [""]
            if len(name) > _MAX_LEFT:
                yield f"  {name}"
            else:
                lines[0] = f"  {name:{left}}{lines[0].lstrip()}".rstrip()
            yield from lines


def _wrapped(text: str, width: int, indent: int, hanging: int | None = None) -> Iterable[str]:
    """The text wrapped at this width, as far as its words allow, and indented."""
    line, begun = " " * indent, False
    for word in filter(None, text.split(" ")):
        if begun and len(line) + 1 + len(word) > width:
            yield line
            line, begun = " " * (indent if hanging is None else hanging), False
        line += " " * begun + word
        begun = True
    if begun:
        yield line
