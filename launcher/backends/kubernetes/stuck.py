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

    def late(self, cluster: api.Cluster, pods: Sequence[Pod], limit_s: float) -> Pod | None:
        """The pod that could not start for the longest time, if that is longer than the limit.

        What was wrong before this process looked for the first time is known from the events of one such pod.
        """
        now = time.monotonic()
        new: list[Pod] = []
        for pod in pods:
            if not states.unstartable(pod):
                self._since.pop(pod.uid, None)
                self._started.add(pod.uid)
            elif pod.uid not in self._since:
                self._since[pod.uid] = now
                new += [] if pod.uid in self._started else [pod]
        if new:
            first = min(new, key=states.waits_since)
            self._since[first.uid] -= _reported_s(cluster, first)
        known = [pod for pod in pods if pod.uid in self._since]
        longest = min(known, key=lambda pod: self._since[pod.uid], default=None)
        return longest if longest is not None and now - self._since[longest.uid] > limit_s else None


def _reported_s(cluster: api.Cluster, pod: Pod) -> float:
    """For how long its host has reported that this pod cannot start; 0 if it has not."""
    first = states.cannot_start_since(refused.events(cluster, pod.name))
    return max(0.0, cluster.now() - first) if first is not None else 0.0
