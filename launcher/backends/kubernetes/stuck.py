"""Since when pods cannot start: Kubernetes tries again by itself, and an image that it pulls for long is no failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import refused, states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes import api
    from launcher.backends.kubernetes.pod_status import Pod


class Stuck:
    """The pods of a run that cannot start, as one process sees them."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """By the uid of a pod, on the monotonic clock."""

        self._started = set[str]()
        """The uids of pods that were seen when nothing was wrong with them."""

    def late(self, cluster: api.Cluster, pods: Sequence[Pod], limit_s: float) -> list[Pod]:
        """Those of the pods that could not start for longer than that.

        What was wrong before this process looked for the first time is known from the pod's warnings.
        """
        found, now = [], time.monotonic()
        for pod in pods:
            if not states.unstartable(pod):
                self._since.pop(pod.uid, None)
                self._started.add(pod.uid)
                continue
            if pod.uid not in self._since:
                before_s = 0.0 if pod.uid in self._started else _warned_s(cluster, pod)
                self._since[pod.uid] = now - before_s
            if now - self._since[pod.uid] > limit_s:
                found.append(pod)
        return found


def _warned_s(cluster: api.Cluster, pod: Pod) -> float:
    """For how long its host has warned of this pod; 0 if it has not."""
    first = states.first_warning(refused.events(cluster, pod.name), "kubelet")
    return max(0.0, time.time() - first) if first is not None else 0.0
