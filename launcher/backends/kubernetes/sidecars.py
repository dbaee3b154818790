"""Sidecars, injected for a mesh or to collect logs: one that never exits holds the pod."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.kubernetes import api, pod_status, refused
from launcher.backends.kubernetes.logs import is_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.demand import Demand
    from launcher.backends.kubernetes.pod_status import Pod

_PATIENCE_S = 5.0
"""How long they may outlive our container, to flush their output or to notice its exit."""

_LOOK_S = 1.0
_LIMIT_S = 20.0


class Beside:
    """The sidecars of one run."""

    def __init__(self, directory: Path, demand: Demand) -> None:
        """`demand`: the nodes whose logs are read, into their directories in this one."""
        self._directory, self._demand = directory, demand
        self._refused = False

    def end(self, cluster: Cluster, pods: Iterable[Sequence[Pod]]) -> None:
        """Delete pods whose own container has exited while a sidecar runs, once their log is complete, if it is read.

        Until then Kubernetes considers the pod running: it neither restarts it nor ends the run. A refusal is reported
        once, does not affect the logs, and is retried on the next call.
        """
        path = f"/api/v1/namespaces/{cluster.namespace}/pods"
        for pod in _held(pods):
            awaited = pod.node in self._demand and not is_stored(self._directory / str(pod.node), pod)
            if awaited or cluster.now() - _ended_at(pod) <= _PATIENCE_S:
                continue
            try:  # on the collection, as the Role grants only that
                cluster.call("DELETE", path, query={"fieldSelector": f"metadata.name={pod.name}"})
            except api.UnreachableError as error:
                output.detail(f"pod {pod.name} is not deleted yet: {error}")
            except api.ApiError as error:
                self._refused = True
                what = f"a sidecar holds pod {pod.name}, which neither restarts nor ends"
                refused.tell(cluster, what, "to end such a pod", error)

    def end_all(self, look: Callable[[], Sequence[Sequence[Pod]]]) -> None:
        """Call `look`, which ends held pods of a run that is over, until none is held; waits only if there are any."""
        limit = time.monotonic() + _LIMIT_S
        while time.monotonic() < limit:
            held = any(
                pod.shared and pod.deleted is None and pod.phase == "Running" for known in look() for pod in known
            )
            if not held or self._refused:
                return
            time.sleep(_LOOK_S)


def _held(pods: Iterable[Sequence[Pod]]) -> list[Pod]:
    return [
        pod
        for known in pods
        for pod in known
        if pod.shared and pod.terminated and pod.phase == "Running" and not pod.deleted
    ]


def _ended_at(pod: Pod) -> float:
    return pod_status.timestamp((pod.terminated or {}).get("finishedAt") or pod.created)
