"""The phases of a start, from the times in the agent's events."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_STEPS = {
    "agent, to its first event": "agent_started",
    "import of torch": "host_facts",
    "rendezvous": "rendezvous",
    "forks, to the first": "worker_started",
    "forks, to the last": "-worker_started",
    "workers' own run, to the last exit": "-worker_exited",
    "end of the agent": "done",
}
"""Each step and the event that ends it; with a dash, the last event of its kind."""


def phases(runs: Path, *, last: int) -> str:
    """The median duration of each step over the last runs in a directory of runs."""
    directories = sorted(runs.iterdir(), key=lambda directory: directory.stat().st_ctime_ns)[-last:]
    taken = [_durations(directory) for directory in directories]
    lines = [
        "  where distlaunch's time goes, s (medians; from run.json, which the launcher writes when it starts the run)"
    ]
    steps = [f"    {step:<36}{statistics.median(run[step] for run in taken):7.3f}" for step in taken[0]]
    return "\n".join([*lines, *steps])


def _durations(directory: Path) -> dict[str, float]:
    stream = (directory / "nodes/0/stream").read_text(encoding="utf-8", errors="replace").splitlines()
    events: list[dict[str, Any]] = [json.loads(line) for line in stream if line.startswith("{")]
    before = json.loads((directory / "run.json").read_text())["created"]
    found = {}
    for step, name in _STEPS.items():
        times = [event["time"] for event in events if event["event"] == name.lstrip("-")]
        now = times[-1] if name.startswith("-") else times[0]
        found[step], before = now - before, now
    found["launcher, after the last event"] = (directory / "result.json").stat().st_mtime - before
    return found
