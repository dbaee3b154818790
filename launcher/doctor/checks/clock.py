"""The clocks of the nodes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.doctor.findings import Status


def clocks(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Clocks more than a second off the median. Beyond a minute, certificates and rendezvous deadlines fail."""
    asked = [report for report in first if "clock_offset_s" in report]
    middle = statistics.median([report["clock_offset_s"] for report in asked] or [0.0])
    for report in asked:
        off = report["clock_offset_s"] - middle
        if abs(off) > 1:
            reason = f"clock {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others"
            status: Status = "fail" if abs(off) > 60 else "warn"
            yield Finding(report["node"], "clock", status, reason, "start chrony or systemd-timesyncd there")


CHECK = Check(2, lambda told: clocks(told.first), needs="clock_offset_s")
