"""The plan of a Slurm run: the job file and the agents' spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from launcher.backends._base import master_text
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._plan import PlannedNode
    from launcher.backends.slurm.allocation import Allocation
    from launcher.backends.slurm.placed import Placed


class Planned(TypedDict):
    """What would be sent to Slurm."""

    sbatch: str
    """The job file, or the script of a step."""

    spec: dict[str, Any]
    """What the agents read: a `Job` of launcher/agent/job.py, for agents of the same version only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPlan:
    """The job file, and the spec that its agents read."""

    run_dir: Path
    directory: Path
    """The run's directory as the nodes see it."""

    text: str
    by_hand: str
    """The job file for a directory that may be moved."""

    job: Job
    nodes: tuple[PlannedNode, ...]
    bundled: bool
    """Whether the script is a bundled one and is sent with the run."""

    name: str
    """The job's name."""

    within: Allocation | None
    """The allocation in which the run is a step; None for a job of its own."""

    placed: Placed
    """Where the nodes find the user's files."""

    tasks: tuple[int, ...]
    """Indices of a job array."""

    partitions: tuple[tuple[str, int], ...]
    """The partition that each component of the job asks for, and how many nodes it needs there."""

    @property
    def master(self) -> str:
        """The first node, known once Slurm has allocated the nodes."""
        return master_text("the first node", 0)

    def to_json(self) -> Planned:
        """The job file's text and the spec."""
        return {"sbatch": self.text, "spec": self.job.to_json()}
