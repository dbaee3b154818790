"""What a check of doctor is: one column of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from launcher.doctor.findings import Finding


class Compared(NamedTuple):
    """What the nodes of one run have told, to be compared."""

    reports: Sequence[Mapping[str, Any]]
    """One per rank (`train/doctor.py`)."""

    facts: Mapping[int, Mapping[str, Any]]
    """What the agent of each node has read (`docs/fabric.md`)."""

    @property
    def first(self) -> list[Mapping[str, Any]]:
        """The report of each node's first rank."""
        return [report for report in self.reports if report["local_rank"] == 0]


class Check(NamedTuple):
    """A file in `checks`, which has the check's name, ends in one of these."""

    column: int
    """Checks are made, and shown, in the order of these."""

    judge: Callable[[Compared], Iterable[Finding]]
    """What is not as it should be."""

    needs: str | None = None
    """The field of a report that it looks at; None: the facts."""

    def seen(self, report: Mapping[str, Any] | None, facts: Mapping[str, Any] | None) -> bool:
        """Whether a node has told what the check looks at."""
        return facts is not None if self.needs is None else self.needs in (report or {})
