"""Findings of doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

Status = Literal["ok", "warn", "fail"]
_WORSE: dict[Status, int] = {"ok": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that one check has found on one node."""

    node: int
    check: str
    status: Status
    reason: str
    fix: str


def worse(one: Status, other: Status) -> Status:
    """The worse of the two."""
    return max(one, other, key=_WORSE.__getitem__)


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status; ok if there are no findings."""
    return max((finding.status for finding in findings), key=_WORSE.__getitem__, default="ok")
