"""A job that is a run, as Slurm lists it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.slurm import states
from launcher.system.dataclass import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, some tasks of an array, or a step of an allocation."""

    run: str
    id: str
    """Without the index of a task; of a step, as `4711.0`."""

    tasks: str
    """Indices as sbatch takes them; empty without an array."""

    state: str
    """In Slurm's terms."""

    submitted: float
    user: str
    nodes: str
    nodelist: str
    name: str
    directory: str
    """The run's; empty if Slurm does not tell."""

    groups: tuple[str, ...] = ()
    """The node lists of the components of a heterogeneous job, in their order."""

    @property
    def allocation(self) -> str:
        """The job of a step; empty if it is none."""
        return self.id.rpartition(".")[0]


def joined(jobs: Iterable[Job]) -> dict[tuple[str, str, str], Job]:
    """The jobs by id, tasks and run, where the components of a heterogeneous job are one."""
    found: dict[tuple[str, str, str], Job] = {}
    for job in jobs:
        first = found.setdefault((job.id, job.tasks, job.run), job)
        if first is not job:
            nodelist = ",".join(filter(None, [first.nodelist, job.nodelist]))
            nodes = str(sum(int(one.nodes) for one in (first, job) if one.nodes.isdigit()))
            found[job.id, job.tasks, job.run] = replace(
                first,
                nodes=nodes,
                nodelist=nodelist,
                state=states.of_all((first.state, job.state)),
                groups=(*first.groups, *job.groups),
            )
    return found
