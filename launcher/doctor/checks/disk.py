"""The disks that a run writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_GIB = 1 << 30


def disks(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Disks that are not writable, or nearly full."""
    for report in first:
        for path, about in report["disks"].items():
            if about["error"]:
                fix = f"free space in {path}, or see whose it is"
                yield Finding(report["node"], "disk", "fail", f"{path}: {about['error']}", fix)
            elif about["free"] < min(_GIB, about["total"] / 20):
                reason = f"{path}: {about['free'] / 2**20:.0f} MiB of {about['total'] / 2**20:.0f} are free"
                yield Finding(report["node"], "disk", "warn", reason, f"free space in {path}")


CHECK = Check(3, lambda told: disks(told.first), needs="disks")
