"""Roles on Slurm: each is a component of one heterogeneous job, and one step spans them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.slurm import allocation
from launcher.errors import SpecError
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.backends.slurm.allocation import Allocation
    from launcher.backends.slurm.options import SlurmOptions
    from launcher.spec import JobSpec, RoleSpec

Directive = tuple[str, "str | None"]

SEPARATOR: Directive = ("hetjob", None)
"""Between the components, as `#SBATCH hetjob`."""

OF_STEP = ("--ntasks-per-node=1", "--mpi=none", "--input=none", "--kill-on-bad-exit=0", "--wait=0")
"""What the template gives srun for the first component, and each has to have."""

_OF_FIRST = ("output", "open-mode", "chdir", "dependency", "licenses", "mail-type", "mail-user")
"""What Slurm takes for the whole job from its first component."""

_HANDED_ON = ("mem", "qos", "reservation")
"""What Slurm gives a component from the one before, and takes no empty value for."""


def directives(spec: JobSpec, of: Callable[[JobSpec, SlurmOptions], list[Directive]]) -> list[Directive]:
    """The `#SBATCH` lines of all components. `of`: those of a job with these nodes and options."""
    found: list[Directive] = []
    for role in spec.roles:
        lines = dict(of(replace(spec, nodes=role.job.nodes, roles=()), role.options))
        if not found:
            found = list(lines.items())
            continue
        lines = {name: value for name, value in lines.items() if name not in _OF_FIRST}
        before = dict(found)
        if "exclude" in before:
            lines.setdefault("exclude", "")
        if name := next((name for name in _HANDED_ON if name in before and name not in lines), ""):
            raise SpecError(
                f"role {role.name} has no {name}, and Slurm would give it that of a role before: {before[name]}",
                hint=f"name one for it, too, or let roles without {name} come first",
            )
        found += [SEPARATOR, *lines.items()]
    return found


def step(spec: JobSpec, options: Callable[[int, RoleSpec], Sequence[str]]) -> list[str]:
    """The options of srun for all components, those of the last one last. `options`: of a role, by its number."""
    found = list(options(0, spec.roles[0]))
    for number, role in enumerate(spec.roles[1:], 1):
        found += [":", *OF_STEP, *options(number, role)]
    return found


def of_job(number: int, role: RoleSpec) -> list[str]:
    """The options of srun for a component of a job of its own."""
    cpus = role.options.cpus_per_task
    return [f"--het-group={number}", *([f"--cpus-per-task={cpus}"] if cpus else [])]


def of_groups(within: Allocation, run: str) -> Callable[[int, RoleSpec], list[str]]:
    """The options of srun for a role in its group of the heterogeneous job that is there."""
    return lambda number, role: allocation.options(within.part(number), role.options, run)


def check_allocation(spec: JobSpec, opts: SlurmOptions, within: Allocation) -> None:
    """Raise `SpecError` if groups are not as large as the roles; without groups, note what roles cannot have there."""
    if not within.groups:
        differ = {
            name.replace("_", "-")
            for role in spec.roles
            for name in type(opts).per_role
            if getattr(role.options, name) != getattr(opts, name)
        }
        if differ:
            output.note(f"a step of job {within.job_id}, which has the same for all roles: {', '.join(sorted(differ))}")
        return
    sizes = [role.job.nodes.max for role in spec.roles]
    if sizes == list(within.sizes):
        return
    asked, there = (", ".join(map(str, numbers)) for numbers in (sizes, within.sizes))
    raise SpecError(
        f"the roles have {asked} nodes, and the groups of job {within.job_id} have {there}",
        hint="each role needs a group with as many nodes, in the same order; --het-group 0,1 chooses groups",
    )


def partitions(spec: JobSpec, opts: SlurmOptions) -> tuple[tuple[str, int], ...]:
    """The partition that each component asks for, and how many nodes it needs there."""
    roles = [(role.options.partition, role.job.nodes.min) for role in spec.roles]
    return tuple(roles or [(opts.partition, spec.nodes.min)])
