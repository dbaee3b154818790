"""How many runs are hit, from which seed, and their results."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.arena import Arena
    from tests.chaos.blows import Blow
    from tests.chaos.verdict import Report


@dataclass
class Score:
    """All tries of one test."""

    seed: int
    wanted: int
    reports: list[Report] = field(default_factory=list)

    def tries(self, usual: int) -> int:
        """How many: as requested, or as usual."""
        return self.wanted or usual

    def play(self, arena: Arena, blows: Iterable[Blow]) -> None:
        """Hit a run with each fault, then judge them all."""
        arena.prepare()
        for blow in blows:
            self.reports.append(arena.hit(blow))
        print(self.table(arena))
        wrong = [
            f"{report.blow} ({report.phase}): {'; '.join(report.wrong)}" for report in self.reports if report.wrong
        ]
        assert not wrong, "\n".join(wrong)
        hit = sum(report.phase != "not hit" for report in self.reports)
        assert hit >= len(self.reports) // 2, f"{hit} of {len(self.reports)} runs were hit"

    def table(self, arena: Arena) -> str:
        """A line for each fault, then the totals."""
        lines = [f"{arena.name}, seed {self.seed}: a run without a fault takes {arena.length_s:.1f} s"]
        for report in self.reports:
            state = report.state or "no run"
            lines.append(
                f"  {report.blow.number:3} {report.blow} ({report.phase}): {state} after {report.seconds:.1f} s"
            )
        seconds = [report.seconds for report in self.reports]
        hit = [report for report in self.reports if report.phase != "not hit"]
        succeeded = sum(report.state == "success" for report in hit)
        lost = sum(report.lost_lines for report in self.reports)
        wrong = sum(bool(report.wrong) for report in self.reports)
        lines.append(
            f"  {len(self.reports)} tries, {len(hit)} hit, {succeeded} of these succeeded all the same, {wrong} wrong"
        )
        lines.append(f"  over after {statistics.median(seconds):.1f} s in the median, {max(seconds):.1f} s at most")
        lines.append(f"  {lost} streams of killed agents end in the middle")
        return "\n".join(lines)


@pytest.fixture
def score(request: pytest.FixtureRequest) -> Score:
    """The score of this test's tries."""
    return Score(request.config.getoption("--chaos-seed"), request.config.getoption("--chaos-tries"))
