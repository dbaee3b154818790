"""Compute speed of each rank."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.doctor.findings import Status


def speed(reports: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Ranks whose speed is far below the median of all ranks."""
    if len(reports) < 3:
        return  # of two ranks, either may be the wrong one
    rates = [report["gemm_tflops"] for report in reports]
    middle = statistics.median(rates)
    deviation = statistics.median(abs(rate - middle) for rate in rates)
    for report in reports:
        part = report["gemm_tflops"] / middle
        if part < 0.8 and middle - report["gemm_tflops"] > 4 * deviation:
            reason = (
                f"rank {report['rank']} (local {report['local_rank']}): {report['gemm_tflops']:.3g} TFLOP/s, "
                f"{part:.0%} of the median {middle:.3g} (deviation {deviation:.2g})"
            )
            status: Status = "fail" if part < 0.5 else "warn"
            yield Finding(report["node"], "speed", status, reason, "look at clocks, power cap, temperature, other jobs")


CHECK = Check(
    9, lambda told: speed([report for report in told.reports if "gemm_tflops" in report]), needs="gemm_tflops"
)
