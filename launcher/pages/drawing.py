"""Pictures of a report as SVG, drawn with drawsvg. Colours are the page's: shapes have classes, not colours.

drawsvg escapes texts and titles, but not attributes. So text that comes from a run is only ever a text or a title.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import drawsvg

from launcher.pages import scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.pages.scale import Scale

WIDTH = 960
MARGIN = 14
_CHARACTER = 6.6
"""The width of a character in these pictures."""


def picture(height: float, name: str, width: float = WIDTH) -> drawsvg.Drawing:
    """An empty picture with a name for screen readers, which a table beside it explains."""
    drawn = drawsvg.Drawing(width, height, role="img", class_="picture", id_prefix="d")
    drawn.append_title(name)
    return drawn


def markup(drawn: drawsvg.Drawing) -> str:
    """The picture as an element of a page. It is as wide as its place."""
    text: str = drawn.as_svg(header="", skip_js=True, skip_css=True)
    return "\n".join(line for line in text.splitlines() if line not in ("<defs>", "</defs>"))


def text(words: str, x: float, y: float, kind: str = "") -> drawsvg.Text:
    """A text in the page's font; `kind`: classes, as `end` for one that ends at `x`."""
    return drawsvg.Text(words, 12, round(x, 1), round(y, 1), class_=f"text {kind}".rstrip())


def shortened(words: str, width: float) -> str:
    """The words, cut to the room that they have."""
    most = max(1, int(width / _CHARACTER))
    return words if len(words) <= most else words[: most - 1] + "…"


Place = tuple[float, float, float, float]
"""Left, top, width and height."""


def box(place: Place, kind: str, title: str) -> drawsvg.Rectangle:
    """A rectangle that explains itself when pointed at."""
    x, y, width, height = place
    found = drawsvg.Rectangle(round(x, 1), round(y, 1), round(max(width, 0.8), 1), round(height, 1), class_=kind)
    found.append_title(title)
    return found


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> drawsvg.Line:
    """A straight line."""
    return drawsvg.Line(round(x1, 1), round(y1, 1), round(x2, 1), round(y2, 1), class_=kind)


def times(drawn: drawsvg.Drawing, across: Scale, top: float, bottom: float, most: int = 8) -> None:
    """An axis of time with vertical lines."""
    for tick in scale.time_ticks(across.high - across.low, most):
        x = across.at(across.low + tick)
        drawn.append(line(x, top, x, bottom, "grid"))
        kind = "start" if x - across.start < MARGIN else "end" if across.end - x < MARGIN else "middle"
        drawn.append(text(scale.time_text(tick), x, bottom + 15, f"tick {kind}"))


def path(points: Iterable[tuple[float, float] | None], kind: str) -> drawsvg.Path:
    """A line through points, with a gap at each None."""
    drawn, pen = drawsvg.Path(class_=kind), False
    for point in points:
        if point is not None:
            (drawn.L if pen else drawn.M)(*point)
        pen = point is not None
    return drawn


def area(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], kind: str) -> drawsvg.Path:
    """The area between two lines."""
    drawn = drawsvg.Path(class_=kind)
    for number, point in enumerate([*upper, *reversed(lower)]):
        (drawn.L if number else drawn.M)(*point)
    return drawn.Z()
