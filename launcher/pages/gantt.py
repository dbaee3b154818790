"""The start-up of each node as bars, and the rounds of a run on a line of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console import summary
from launcher.pages import drawing, scale
from launcher.pages.scale import Scale

if TYPE_CHECKING:
    from launcher.results.report import Moment, NodeStart, Phase, Round, Startup

_ROW, _BAR = 20, 13
_LABELS = 150
_MOST_ROWS = 64
_QUEUE_WIDTH = 110
_AXIS = 22
_CUT = 0.6
"""A queue that took more than this part of the start-up is drawn shorter than it was."""

CLASSES = {
    "queue": "queue",
    "agent": "agent",
    "import": "import",
    "rendezvous": "rendezvous",
    "workers": "workers",
    "first line": "script",
}
"""The class of each phase's bars."""


def startup(found: Startup) -> str:
    """One row for each node, or for the slowest ones of many."""
    nodes = slowest(found["nodes"])
    edges = [(phase["start"], phase["end"]) for node in nodes for phase in node["phases"]]
    begin, end = min(start for start, _ in edges), max(end for _, end in edges)
    queue_end = min(
        (phase["end"] for node in nodes for phase in node["phases"] if phase["name"] == "queue"), default=begin
    )
    cut = queue_end - begin > _CUT * (end - begin)
    height = len(nodes) * _ROW + _AXIS + 4
    drawn = drawing.picture(height, "Start-up of each node: how long each phase took")
    across = Scale(
        queue_end if cut else begin, end, _LABELS + (_QUEUE_WIDTH if cut else 0), drawing.WIDTH - drawing.MARGIN
    )
    drawing.times(drawn, across, 0, height - _AXIS)
    for row, node in enumerate(nodes):
        y = row * _ROW + 3
        label = f"{node['node']}  {node['host']}"
        drawn.append(drawing.text(drawing.shortened(label, _LABELS - 12), _LABELS - 10, y + 11, "end"))
        for phase in node["phases"]:
            if cut and phase["name"] == "queue":
                drawn.append(_bar(phase, node, (_LABELS, y, _QUEUE_WIDTH - 3, _BAR)))
                drawn.append(drawing.text(f"{_took(phase)} ⋯", _LABELS + 5, y + 11, "small"))
            else:
                x = across.at(phase["start"])
                drawn.append(_bar(phase, node, (x, y, across.at(phase["end"]) - x, _BAR)))
    return drawing.markup(drawn)


def slowest(nodes: list[NodeStart]) -> list[NodeStart]:
    """All nodes of a few, or those of many that were ready last, in the order of their numbers."""
    last = sorted(nodes, key=lambda node: -max(phase["end"] for phase in node["phases"]))[:_MOST_ROWS]
    return sorted(last, key=lambda node: node["node"])


def _bar(phase: Phase, node: NodeStart, place: drawing.Place) -> object:
    title = f"node {node['node']} ({node['host']}): {phase['name']} {_took(phase)}"
    return drawing.box(place, f"phase {CLASSES[phase['name']]}", title)


def _took(phase: Phase) -> str:
    return summary.duration(phase["end"] - phase["start"])


def rounds(found: list[Round], moments: list[Moment]) -> str:
    """One row for each attempt or role, with marks for what happened."""
    rows = list(dict.fromkeys((each["attempt"], each["role"]) for each in found))
    begin = min([each["start"] for each in found] + [moment["time"] for moment in moments])
    end = max([each["end"] for each in found] + [moment["time"] for moment in moments])
    height = (len(rows) + 1) * (_ROW + 4) + _AXIS
    drawn = drawing.picture(height, "Attempts and rounds of the run on a line of time")
    across = Scale(begin, max(end, begin + 0.1), _LABELS, drawing.WIDTH - drawing.MARGIN)
    drawing.times(drawn, across, 0, height - _AXIS)
    for row, (attempt, role) in enumerate(rows):
        y = row * (_ROW + 4) + 4
        label = ", ".join(filter(None, [f"attempt {attempt}", role]))
        drawn.append(drawing.text(drawing.shortened(label, _LABELS - 12), _LABELS - 10, y + 12, "end"))
        for each in found:
            if (each["attempt"], each["role"]) == (attempt, role):
                x, width = across.at(each["start"]), across.at(each["end"]) - across.at(each["start"])
                drawn.append(drawing.box((x, y, width, _BAR + 2), _kind(each), _about(each)))
                name = f"round {each['round']}"
                if width > len(name) * 8:
                    drawn.append(drawing.text(name, x + 6, y + 12, "on-bar"))
    y = len(rows) * (_ROW + 4) + 4
    drawn.append(drawing.text("events", _LABELS - 10, y + 12, "end"))
    for moment in moments:
        if moment["kind"] != "start":
            x = across.at(moment["time"])
            title = f"{scale.time_text(round(moment['time'] - begin, 1))}: {moment['text']}"
            drawn.append(drawing.box((x - 2, y, 4, _BAR + 2), f"mark {moment['kind']}", title))
    return drawing.markup(drawn)


def _kind(each: Round) -> str:
    """A round that ended otherwise than by success is drawn as such."""
    return "round" if each["ended_by"] in ("", "success") else "round badly"


def _about(each: Round) -> str:
    end = f"; {each['ended_by']}" if each["ended_by"] else ""
    return f"round {each['round']}: {each['world_size']} ranks, {summary.duration(each['end'] - each['start'])}{end}"
