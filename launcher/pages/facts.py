"""What a report says about a run in a few words, in every format."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

from launcher.console import progress_text, stack_lines, summary
from launcher.runs.outcome import EXIT_CODES
from launcher.system import amounts

if TYPE_CHECKING:
    from launcher.results.report import Report, Taken


def facts(report: Report) -> list[tuple[str, str]]:
    """Names and values."""
    ranks = sum(len(node["ranks"]) for node in report["nodes"])
    size = amounts.counted(len(report["nodes"]), "node") + (f", {amounts.counted(ranks, 'rank')}" if ranks else "")
    created = report["created"]
    found = [
        ("Command", shlex.join(report["command"])),
        ("Runs on", ", cluster ".join(filter(None, (report["backend"], report["cluster"])))),
        ("Job", report["job_id"] or ""),
        ("Size", size),
        ("Submitted", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(created)) if created else ""),
        ("Waited", "" if report["queued_s"] is None else summary.duration(report["queued_s"])),
        ("Took", "" if report["duration_s"] is None else summary.duration(report["duration_s"])),
        ("Progress", progress_text.line(report["progress"]) if report["progress"] else ""),
        ("Exit code", "" if report["exit_code"] is None else str(report["exit_code"])),
        ("Directory", report["path"]),
        ("Outputs", report["output_dir"] or ""),
    ]
    return [(name, value) for name, value in found if value]


def stacks(report: Report) -> list[dict[str, Any]]:
    """What the ranks did when stacks were taken, the latest first: a title, a sentence, and groups with their calls."""
    return [
        {
            "title": "When somebody asked" if each["reason"] == "request" else _hang(each),
            "time": each["time"],
            "message": each["message"],
            "groups": [
                {
                    "title": stack_lines.title(group),
                    "odd": bool({*group["ranks"]} & {*each["odd"]}),
                    "lines": [line.strip() for line in stack_lines.frames(group["frames"], whole=True)],
                }
                for group in each["groups"]
            ],
        }
        for each in reversed(report["stacks"])
    ]


def _hang(taken: Taken) -> str:
    """How long it was silent, and what followed."""
    followed = {"end": "the run was ended", "restart": "all workers were started again"}.get(taken["action"] or "", "")
    return f"A hang, {taken['silent_s']} s without a line" + (f": {followed}" if followed else "")


def tone(state: str) -> str:
    """`good`, `bad`, `warn` or `live`, by the state of a run."""
    if state not in EXIT_CODES:
        return "warn" if state == "unknown" else "live"
    return "good" if state == "success" else "bad" if state == "failed" else "warn"
