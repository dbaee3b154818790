"""Measurements over time: the nodes' common range, their median, and the nodes that stand out."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from launcher.agent.system.folding import counted
from launcher.pages import drawing, scale
from launcher.pages.scale import Scale
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.results.report import Curve, ProgressCurve, Series

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 470, 170, 62, 22, 8
FEW = 4
"""So many nodes have a line each."""

_MOST_OUTLIERS, _COLOURS = 5, 6


def series(found: Series, begin: float) -> str:
    """One measurement of all nodes. `begin`: where the axis of time starts."""
    every = scale.bounds(value for curve in found["nodes"] for value in curve["values"])
    low, high = every or (0.0, 1.0)
    low = min(0.0, low)
    ticks = scale.value_ticks(low, 100.0 if found["unit"] == "%" and high <= 100 else high)
    across, up = _axes(begin, max(found["times"], default=begin), ticks)
    drawn = drawing.picture(_HEIGHT, found["title"], _WIDTH)
    _grid(drawn, across, up, ticks, found["unit"])
    several = len(found["nodes"]) > FEW
    if several:
        _band(drawn, found, across, up)
    for number, curve in enumerate(_alone(found["nodes"])):
        kind = f"line own-{(number + several) % _COLOURS}" + (" outlier" if curve["outlier"] else "")
        shape = drawing.path(_points(found["times"], curve["values"], across, up), kind)
        shape.append_title(f"node {curve['node']}")
        drawn.append(shape)
        last = next(((x, y) for x, y in _known(found["times"], curve["values"])[::-1]), None)
        if several and last is not None:
            drawn.append(drawing.text(f"node {curve['node']}", across.at(last[0]) - 4, up.at(last[1]) - 4, "end small"))
    return drawing.markup(drawn)


def outliers(found: Series) -> str:
    """Which nodes stand out, in words."""
    nodes = [curve["node"] for curve in found["nodes"] if curve["outlier"]]
    return f"{counted(nodes, 'node')} stand{'s' * (len(nodes) == 1)} out" if nodes else ""


def loss_text(found: ProgressCurve) -> str:
    """The last loss, and of which step."""
    last = next(point for point in reversed(found["points"]) if point["loss"] is not None)
    rank = "" if found["rank"] is None else f" of rank {found['rank']}"
    step = f", step {last['step']}" if last["step"] is not None else ""
    if last is not found["points"][-1]:
        return f"Loss{rank}: {last['loss']:.4g}{step}; no number since"
    return f"Loss{rank}: {last['loss']:.4g} at the end{step}"


def loss(found: ProgressCurve, begin: float) -> str:
    """The loss over time."""
    points = [(point["time"], point["loss"]) for point in found["points"] if point["loss"] is not None]
    low, high = scale.bounds(value for _, value in points) or (0.0, 1.0)
    ticks = scale.value_ticks(low, high)
    across, up = _axes(begin, max((when for when, _ in points), default=begin), ticks, drawing.WIDTH)
    drawn = drawing.picture(_HEIGHT, "Loss over time", drawing.WIDTH)
    _grid(drawn, across, up, ticks, "")
    drawn.append(drawing.path([(across.at(when), up.at(value)) for when, value in points], "line own-0"))
    return drawing.markup(drawn)


def _axes(begin: float, end: float, ticks: Sequence[float], width: float = _WIDTH) -> tuple[Scale, Scale]:
    across = Scale(begin, max(end, begin + 1.0), _LEFT, width - drawing.MARGIN)
    return across, Scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)


def _grid(drawn: object, across: Scale, up: Scale, ticks: Sequence[float], unit: str) -> None:
    drawing.times(drawn, across, _TOP, _HEIGHT - _BOTTOM, 5)
    for tick in ticks:
        y = up.at(tick)
        drawn.append(drawing.line(across.start, y, across.end, y, "grid"))  # type: ignore[attr-defined]
        drawn.append(drawing.text(amounts.measured(tick, unit), across.start - 6, y + 4, "tick end"))  # type: ignore[attr-defined]


def _alone(nodes: Sequence[Curve]) -> list[Curve]:
    """The nodes that have a line of their own."""
    return list(nodes) if len(nodes) <= FEW else [node for node in nodes if node["outlier"]][:_MOST_OUTLIERS]


def _band(drawn: object, found: Series, across: Scale, up: Scale) -> None:
    """The range of the nodes that do not stand out, and the median of all."""
    usual = [curve["values"] for curve in found["nodes"] if not curve["outlier"]]
    upper, lower, middle = [], [], []
    for number, when in enumerate(found["times"]):
        values = [each[number] for each in usual if number < len(each)]
        if edges := scale.bounds(values):
            x = across.at(when)
            lower.append((x, up.at(edges[0])))
            upper.append((x, up.at(edges[1])))
            middle.append((x, up.at(median(value for value in values if value is not None))))
    drawn.append(drawing.area(upper, lower, "band"))  # type: ignore[attr-defined]
    drawn.append(drawing.path(middle, "line median"))  # type: ignore[attr-defined]


def _known(times: Sequence[float], values: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(when, value) for when, value in zip(times, values, strict=False) if value is not None]


def _points(
    times: Sequence[float], values: Sequence[float | None], across: Scale, up: Scale
) -> list[tuple[float, float] | None]:
    return [
        None if value is None else (across.at(when), up.at(value)) for when, value in zip(times, values, strict=False)
    ]
