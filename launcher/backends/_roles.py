"""What agents have to know of the roles of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.job import Job
    from launcher.spec import JobSpec

_FIELDS = (
    *("command", "kind", "workers", "contract", "ps", "env", "max_restarts", "start", "preload"),
    *("numa_binding", "near_nics", "virtual_local_rank"),
)
"""The fields of a `Job` that each role has of its own."""


def with_roles(job: Job, spec: JobSpec, own: Callable[[JobSpec], dict[str, Any]]) -> Job:
    """The job, with what each role has of its own.

    `own`: fields that the backend decides, such as the command; None for those that only the node knows.
    """
    if not spec.roles:
        return job
    found = []
    for role in spec.roles:
        fields = role.job.job(run=job.run, directory=job.directory, rendezvous=job.rendezvous)._asdict()
        how = {"name": role.name, "nodes": role.job.nodes.max, "on_failure": role.on_failure, "serves": role.serves}
        told = own(role.job)
        fields = {name: value for name, value in {**fields, **told}.items() if name in _FIELDS}
        found.append({**how, **{name: value for name, value in fields.items() if told.get(name, "") is not None}})
    return job._replace(roles=found)


def names_of(spec: JobSpec) -> list[str]:
    """The role of each node, by node rank; empty names if the run has no roles."""
    if not spec.roles:
        return [""] * spec.nodes.max
    return [role.name for role in spec.roles for _ in range(role.job.nodes.max)]


def parts_of_nodes(spec: JobSpec) -> list[JobSpec]:
    """The job of each node's role, by node rank."""
    return [part for part in spec.parts for _ in range(part.nodes.max)]
