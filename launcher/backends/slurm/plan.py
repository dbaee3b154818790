"""What would be sent to Slurm: the job file and the agents' spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.backends._base import master_text

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._base import PlannedNode
    from launcher.backends.slurm.allocation import Allocation
    from launcher.payload.snapshot import Snapshot


class Planned(TypedDict):
    """What would be sent to Slurm."""

    sbatch: str
    """The job file, or the script of a step."""

    spec: dict[str, Any]
    """What the agents read, as `Job` in launcher/agent/job.py has it: for agents of the same version alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPlan:
    """The job file, and the spec that its agents read."""

    run_dir: Path
    text: str
    by_hand: str
    """The same for a directory that may be moved."""

    job: Job
    nodes: tuple[PlannedNode, ...]
    bundled: bool
    """The script is one of ours and travels with the run."""

    name: str
    """Of the job."""

    within: Allocation | None
    """The allocation in which it is a step; None: a job of its own."""

    copied: Path | None
    """The directory of which the run gets a copy."""

    snapshot: Snapshot | None
    """Its files."""

    tasks: tuple[int, ...]
    """Indices of a job array."""

    @property
    def master(self) -> str:
        """Known when Slurm has given the nodes."""
        return master_text("the first node", 0)

    def to_json(self) -> Planned:
        """The job file's text and the spec."""
        return {"sbatch": self.text, "spec": self.job.to_json()}
