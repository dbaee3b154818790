"""The Jobs of all roles but the first one, whose Job owns them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import Failure
from launcher.backends.kubernetes import api, objects, pod_status, states

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.pod_status import Object

_PATIENCE_S = 60.0
"""How long the agents of the other roles have, beyond the grace time, to end by themselves."""


def names(handle: KubernetesHandle) -> list[str]:
    """Their names; empty if the run has one object for all its pods."""
    return objects.makers("job", handle["name"], handle.get("roles", ()))[1:] if handle["kind"] == "job" else []


def path_of(cluster: Cluster, name: str) -> str:
    """Where the API server has that Job."""
    return f"{objects.KINDS['job'].path.format(cluster.namespace)}/{name}"


class Ends:
    """How a run's workloads have ended, as far as they have."""

    def __init__(self, cluster: Cluster, handle: KubernetesHandle, owner: Object | None) -> None:
        """`owner`: the run's; None if nothing has ended."""
        self._cluster, self._handle = cluster, handle
        self.first = states.finished(owner)
        asked = names(handle) if owner is not None and not states.is_suspended(owner) else []
        self._others = {name: cluster.find(path_of(cluster, name)) for name in asked}

    def of_node(self, node: int) -> Object | None:
        """The condition that ended the workload of that node."""
        roles = self._handle.get("roles", {})
        jobs = zip(["", *self._others], roles.values(), strict=True) if self._others else ()
        name = next(islice((name for name, nodes in jobs for _ in range(nodes)), node, None), "")
        return self.first or (_end(name, self._others[name]) if name else None)

    def broken(self) -> tuple[str, str] | None:
        """The class and message of a failure, if a role's Job has ended for good and the others wait for its nodes."""
        ignored = {f"{self._handle['name']}-{role}" for role in self._handle.get("ignored", ())}
        for name, job in self._others.items() if self.first is None else ():
            end = (_end(name, job) if name not in ignored else None) or {}
            since = pod_status.timestamp(end["lastTransitionTime"]) if "lastTransitionTime" in end else 0.0
            if end.get("type") in states.FAILED and self._cluster.now() > since + self._handle["grace_s"] + _PATIENCE_S:
                kind = Failure.NODE if job else Failure.CANCELLED
                return kind, f"Job {name} ended before the others: {end.get('reason')}: {end.get('message')}"
        return None

    def end_rest(self) -> None:
        """Once the first role's Job has ended, and with it the run: have Kubernetes end pods that wait for its nodes.

        What has ended stays, with its logs.
        """
        for name, job in self._others.items() if self.first is not None else ():
            if job is None or states.finished(job) is not None:
                continue
            try:
                path = path_of(self._cluster, name)
                self._cluster.call("PATCH", path, {"spec": {"activeDeadlineSeconds": 1}}, content=api.MERGE)
            except api.ApiError as error:
                output.detail(f"pods of Job {name} may wait for nodes that have ended: {error}")


def _end(name: str, job: Object | None) -> Object | None:
    if job is None:
        return {"type": "Failed", "reason": "Deleted", "message": f"Job {name} no longer exists"}
    return states.finished(job)
