"""What a backend would send, in the form that all have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One row of the plan table. `workers`: None if only the node knows. `role`: empty if the run has none."""

    node_rank: int
    host: str
    workers: int | None
    role: str = ""


class Plan(Protocol):
    """Exactly what would be sent. Each backend has its own type; these members are common to all."""

    @property
    def nodes(self) -> tuple[PlannedNode, ...]:
        """The nodes in rank order."""

    @property
    def master(self) -> str:
        """MASTER_ADDR and port for the plan table, `ADDR:PORT`, or `ADDR (port chosen at start)`."""

    @property
    def job(self) -> Job:
        """What the agents read; also whom to tell of the run (`notify`)."""

    @property
    def tasks(self) -> tuple[int, ...]:
        """Indices of a job array, each of which is a run; empty for any other run."""

    def to_json(self) -> Mapping[str, Any]:
        """The whole plan as plain JSON, of the type `Planned` next to each backend's plan."""
