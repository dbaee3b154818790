"""What a cluster has, and when a job would start there; without a scheduler that tells, by what is free."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.results.cluster import Capacity, ExpectedStart, SurveyedHost


class Outlook(NamedTuple):
    """The answer of one cluster."""

    capacity: Capacity
    start: ExpectedStart
    database: tuple[str, str] = ("", "")
    """The scheduler's database, which other clusters may share, and the cluster's name there; empty without one."""


def nothing() -> Capacity:
    """The capacity of a cluster that does not tell."""
    return {"nodes": None, "nodes_free": None, "gpus": None, "gpus_free": None, "waiting": None, "own_runs": None}


def capacity(
    hosts: Sequence[SurveyedHost], is_free: Callable[[SurveyedHost], bool], *, waiting: int, own_runs: int
) -> Capacity:
    """What these hosts have together; on one with a problem, nothing is free."""
    able = [host for host in hosts if host["problem"] is None]
    return {
        "nodes": len(hosts),
        "nodes_free": sum(map(is_free, able)),
        "gpus": sum(host["gpus_total"] or 0 for host in able),
        "gpus_free": sum(free_gpus(host) for host in able),
        "waiting": waiting,
        "own_runs": own_runs,
    }


def free_gpus(host: SurveyedHost) -> int:
    """How many of its GPUs no one has; a lease of the whole host has all of them."""
    if host["gpus"] and any(lease["gpus"] is None for lease in host["leases"]):
        return 0
    return max(0, (host["gpus_total"] or 0) - (host["gpus_used"] or 0))


def now(how: str) -> ExpectedStart:
    """It could start now."""
    return {"at": time.time(), "how": how}


def unknown(how: str) -> ExpectedStart:
    """No one can tell when."""
    return {"at": None, "how": how}


def by_free(wanted: int, free: int, every: int, what: str) -> ExpectedStart:
    """Whether there are enough nodes on which the job fits now."""
    if wanted > every:
        return unknown(f"it has {every} {what}, and the job needs {wanted}")
    told = f"{free} of {every} {what} free"
    return now(told) if free >= wanted else unknown(told)
