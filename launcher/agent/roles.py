"""Roles: groups of a run's nodes that differ in what they do. Each has ranks, rounds and a contract of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List

from .job import LOOPBACK
from .named_tuple import NamedTuple

if TYPE_CHECKING:
    from .job import Job

END, RESTART, IGNORE = "end", "restart_role", "ignore"
ON_FAILURE = (END, RESTART, IGNORE)
"""What follows from the failure of a worker: the run ends, its role starts again, or nothing."""


class Role(NamedTuple):
    """One role, or the whole of a run without roles."""

    name: str
    first: int
    """Its first node's rank among all nodes of the run."""

    nodes: int
    on_failure: str = END
    serves: bool = False
    """Whether it serves the others until they are done, and is ended then."""

    prefix: str = ""
    """Of its keys in the run's store."""

    @property
    def variable(self) -> str:
        """What its variables begin with."""
        return f"DISTLAUNCH_ROLE_{re.sub('[^A-Z0-9]', '_', self.name.upper())}"


def of(job: Job) -> List[Role]:
    """The run's roles, in the order of their nodes."""
    if not job.roles:
        return [Role(job.role, 0, job.max_nodes)]
    found: List[Role] = []
    for about in job.roles:
        name, first = about["name"], sum(role.nodes for role in found)
        how = (about.get("on_failure", END), about.get("serves", False))
        found.append(Role(name, first, about["nodes"], *how, f"role/{name}/"))
    return found


def at(job: Job, node: int) -> Role:
    """The role of a node."""
    every = of(job)
    return next((role for role in every if node < role.first + role.nodes), every[-1])


def job_of(job: Job, node: int) -> Job:
    """The job as a node's agent is to run it: with what its role has in place of the run's."""
    if not job.roles:
        return job
    role = at(job, node)
    own: Dict[str, Any] = {**job.roles[of(job).index(role)]}
    own = {name: value for name, value in own.items() if name in job._fields}
    own["env"] = {**job.env, **own.get("env", {})}
    if role.first and job.master_addr != LOOPBACK:  # what is given is an address of the run's first node
        own["master_addr"] = None
    return job._replace(**own, role=role.name)
