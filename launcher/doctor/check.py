"""The definition of a doctor check, which is one column of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from launcher.doctor.findings import Finding


class Compared(NamedTuple):
    """What the nodes of one run have reported, for comparison."""

    reports: Sequence[Mapping[str, Any]]
    """One per rank (`train/doctor.py`)."""

    facts: Mapping[int, Mapping[str, Any]]
    """By node, from its agent (`docs/fabric.md`)."""

    @property
    def first(self) -> list[Mapping[str, Any]]:
        """The report of each node's first rank."""
        return [report for report in self.reports if report["local_rank"] == 0]


class Check(NamedTuple):
    """A check. Each module in `checks` has the name of its check and defines it as `CHECK`."""

    column: int
    """Checks are made and shown in this order."""

    judge: Callable[[Compared], Iterable[Finding]]
    """Returns the findings."""

    needs: str | None = None
    """The field of a report that the check examines, or `FIELD.FIELD`; None: the facts."""

    def seen(self, report: Mapping[str, Any] | None, facts: Mapping[str, Any] | None) -> bool:
        """Whether a node has reported what the check examines."""
        if self.needs is None:
            return facts is not None
        found: Any = report
        for name in self.needs.split("."):
            found = (found or {}).get(name)
        return found is not None
