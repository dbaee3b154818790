"""What doctor finds: one check on one node that is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def worst(findings: Iterable[Finding]) -> Status:
    """Of all of them; ok where there are none."""
    return max((finding.status for finding in findings), key=_WORSE.__getitem__, default="ok")
