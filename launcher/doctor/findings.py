"""What doctor finds: one check on one node that is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Status = Literal["ok", "warn", "fail"]
_WORSE: dict[Status, int] = {"ok": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check on one node that is not as it should be."""

    node: int
    check: str
    status: Status
    reason: str
    fix: str


CHECKS = ("versions", "clock", "disk", "limits", "network", "ports", "mtu", "gpu", "speed", "links")
"""Columns of the table."""

_NEEDS = {
    "versions": "versions",
    "clock": "clock_offset_s",
    "disk": "disks",
    "ports": "paths",
    "mtu": "paths",
    "speed": "gemm_tflops",
    "links": "gbytes_per_s",
}


def seen(check: str, report: Mapping[str, Any] | None, facts: Mapping[str, Any] | None) -> bool:
    """Whether a node's report, or its facts, have what the check looks at."""
    return _NEEDS[check] in (report or {}) if check in _NEEDS else facts is not None


def worst(findings: Iterable[Finding]) -> Status:
    """Of all of them; ok where there are none."""
    return max((finding.status for finding in findings), key=_WORSE.__getitem__, default="ok")
