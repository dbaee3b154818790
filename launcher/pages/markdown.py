"""A report as Markdown, short enough for an issue or the summary of a CI job."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from launcher.console import summary
from launcher.pages.facts import facts, stacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.results.report import Report, Startup

_MOST_ROWS = 16
_MOST_MOMENTS = 30
_LAST_LINES = 30
_CALLS = 12


def markdown(report: Report) -> str:
    """The whole text."""
    parts = [f"# {_plain(report['verdict'])}", f"Run {_code(report['run'])}"]
    if report["explanation"]:
        parts += ["## First cause", _block("\n".join(report["explanation"]))]
    if report["observations"]:
        rows = (f"- **{_plain(each['title'])}** {_plain(each['detail'])}" for each in report["observations"])
        parts += ["## Findings", "\n".join(rows)]
    parts += ["## Run", _table(("", ""), [(name, _code(value)) for name, value in facts(report)])]
    if report["missing"]:
        parts.append("Not in this report: " + "; ".join(map(_plain, report["missing"])) + ".")
    if report["startup"]:
        parts += _startup(report["startup"])
    if report["moments"]:
        parts += _moments(report)
    for taken in stacks(report):
        calls = [line for group in taken["groups"] for line in (group["title"], *_innermost(group["lines"]))]
        parts += [f"## {_plain(taken['title'])}", _plain(taken["message"]), _block("\n".join(calls))]
    if report["logs"]:
        log = report["logs"][0]
        lines = [line["text"] for line in log["lines"][-_LAST_LINES:]]
        parts += [f"## Last lines of rank {log['rank']}", _block("\n".join(lines))]
    chosen = [(name, each) for name, each in report["settings"].items() if each["source"] != "default"]
    if chosen:
        rows_of = [(_code(name), _code(str(each["value"])), _plain(each["source"])) for name, each in chosen]
        parts += ["## Settings", _table(("Setting", "Value", "Source"), rows_of)]
    parts += ["## Start it again", _block(report["reproduce"], "sh")]
    return "\n\n".join(parts) + "\n"


def _startup(found: Startup) -> list[str]:
    took = [
        (node, {phase["name"]: summary.duration(phase["end"] - phase["start"]) for phase in node["phases"]})
        for node in found["nodes"]
    ]
    names = list(dict.fromkeys(name for _, lengths in took for name in lengths))
    rows = [
        (str(node["node"]), _code(node["host"]), *(lengths.get(name, "") for name in names))
        for node, lengths in took[:_MOST_ROWS]
    ]
    more = [f"{len(took) - _MOST_ROWS} more nodes are not shown."] if len(took) > _MOST_ROWS else []
    title = f"## Start-up: {summary.duration(found['took_s'])}"
    text = f"{found['slowest'][:1].upper()}{found['slowest'][1:]}."
    return [title, _plain(text), _table(("Node", "Host", *names), rows), *more]


def _moments(report: Report) -> list[str]:
    shown = report["moments"][-_MOST_MOMENTS:]
    rows = [(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["time"])), _plain(each["text"])) for each in shown]
    left = len(report["moments"]) - len(shown)
    more = [f"{left} earlier events are not shown."] if left else []
    return ["## What happened when", _table(("Time", "What"), rows), *more]


def _innermost(calls: Sequence[str]) -> list[str]:
    more = [f"    ... {len(calls) - _CALLS} more"] if len(calls) > _CALLS else []
    return [f"    {call}" for call in calls[:_CALLS]] + more


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _plain(text: str) -> str:
    """The text on one line, with everything escaped that Markdown or HTML would read as more than text."""
    return re.sub(r"([\\`*_{}\[\]<>|#@~])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """The text as code, in which a table allows no bar."""
    text = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}" if text else ""


def _block(text: str, language: str = "text") -> str:
    """The text as a block that nothing in it can end."""
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text}\n{fence}"
