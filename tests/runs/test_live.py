"""One run as `distlaunch top` shows it, from the records of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.protocol import Event
from launcher.runs.live import Live
from launcher.runs.records import Run

if TYPE_CHECKING:
    from pathlib import Path


def test_rate_and_odd_ranks_are_those_of_the_last_minutes_however_long_it_is_looked_at(tmp_path: Path) -> None:
    """Steps take half as long from the second hour on, but for one rank."""
    live = Live(Run(id="r", path=tmp_path, plan={"nodes": [{"node_rank": 0, "host": "n0", "workers": 4}]}))
    for number in range(3000):
        step = max(number, 2 * number - 360)
        own = {"ranks": [0, 1, 2, 3], "rank_step": [step, step, step, number], "rank_time": [1000.0 + 10 * number] * 4}
        fields = {"time": 1000.0 + 10 * number, "sample": number, "whole": True, "rank_steps": [10_000] * 4, **own}
        live.add(0, [Event("sample", fields)], None)

    found = live.top(0.0)

    assert found["progress"] is not None
    assert found["progress"]["rate"] == 0.2
    assert [(one["kind"], one["rank"]) for one in found["findings"]] == [("slow", 3)]
