"""A report as one HTML file, which needs no network and runs no script but its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from launcher.console import summary
from launcher.pages import curves, gantt, template
from launcher.pages.facts import facts, stacks, tone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.pages.template import Live
    from launcher.results.report import NodeStart, Report

_SECTIONS = (
    ("cause", "Cause"), ("findings", "Findings"), ("run", "Run"), ("start", "Start-up"), ("time", "Time line"),
    ("stacks", "Stacks"), ("loss", "Loss"), ("samples", "Samples"), ("nodes", "Nodes"), ("logs", "Logs"),
    ("settings", "Settings"), ("again", "Start again"),
)  # fmt: skip


def html(report: Report, live: Live | None = None) -> str:
    """The whole page; `live`: as `distlaunch serve` shows it."""
    pictures = _pictures(report)
    empty = {
        "cause": not report["explanation"],
        "findings": not report["observations"],
        "start": report["startup"] is None,
        "time": not (report["rounds"] or report["moments"]),
        "stacks": not report["stacks"],
        "loss": not pictures["loss"],
    }
    nodes = report["startup"]["nodes"] if report["startup"] else []
    shown = gantt.slowest(nodes) if nodes else []
    settings = report["settings"].items()
    return template.rendered(
        "report.html",
        live,
        ("report.js",),
        report=report,
        tone=tone(report["state"]),
        sections=[(key, name) for key, name in _SECTIONS if not empty.get(key)],
        cause=_cause(report["explanation"]),
        facts=facts(report),
        pictures=pictures,
        stacks=stacks(report),
        phases=[("queued" if name == "queue" else name, kind) for name, kind in gantt.CLASSES.items()],
        start_rows=[_lengths(node) for node in shown],
        hidden_nodes=len(nodes) - len(shown),
        moments=report["moments"],
        many=any(len(each["nodes"]) > curves.FEW for each in report["samples"]),
        chosen=[(name, each) for name, each in settings if each["source"] != "default"],
        defaults=[(name, each) for name, each in settings if each["source"] == "default"],
    )  # fmt: skip


def _cause(lines: list[str]) -> dict[str, list[str]]:
    """What happened in words, and the traceback or last lines after that."""
    first = next(
        (number for number, line in enumerate(lines) if line.startswith(("Traceback", "  ", "its last lines"))),
        len(lines),
    )
    return {"words": lines[:first], "lines": lines[first:]}


def _lengths(node: NodeStart) -> dict[str, Any]:
    took = {str(phase["name"]): summary.duration(phase["end"] - phase["start"]) for phase in node["phases"]}
    return {"node": node["node"], "host": node["host"], "lengths": [took.get(name, "") for name in gantt.CLASSES]}


def _pictures(report: Report) -> Mapping[str, Any]:
    begin = min((each["start"] for each in report["rounds"]), default=report["created"] or 0.0)
    timed = report["rounds"] or report["moments"]
    return {
        "startup": _markup(gantt.startup(report["startup"])) if report["startup"] else "",
        "rounds": _markup(gantt.rounds(report["rounds"], report["moments"])) if timed else "",
        "samples": [
            {"title": each["title"], "text": curves.outliers(each), "picture": _markup(curves.series(each, begin))}
            for each in report["samples"]
        ],
        "loss": [
            {"title": curves.loss_text(each), "picture": _markup(curves.loss(each, begin))}
            for each in report["progress_curves"]
            if any(point["loss"] is not None for point in each["points"])
        ],
    }


def _markup(svg: str) -> Markup:
    return Markup(svg)  # noqa: S704 - drawsvg has escaped every text in it
