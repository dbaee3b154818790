"""The logs of a run's pods, fetched into its directory: followed by at most one process, or updated on request."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import api
from launcher.backends.kubernetes.demand import Demand
from launcher.backends.kubernetes.following import Following
from launcher.backends.kubernetes.locking import locked
from launcher.backends.kubernetes.logs import NodeLog, is_stored
from launcher.backends.kubernetes.objects import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.pod_status import Pod
    from launcher.errors import LaunchError

_LIMIT_S, _EACH_S = 10.0, 0.1
"""How long a status query waits for new log lines, and how much longer for each log."""

_FEW_NODES = 32
"""For a larger run, a status query reads only the logs of node 0 and of ended nodes."""


class PodLogs:
    """Fetches the logs, unless another process does."""

    def __init__(self, directory: Path, handle: KubernetesHandle, cluster: Callable[[], api.Cluster]) -> None:
        """`cluster` is called when the cluster is first needed."""
        self._directory, self._handle, self._cluster = directory, handle, cluster
        self._following: Following | None = None
        self._held: ExitStack | None = None
        self.demand = Demand(handle["nodes"])

    def pods(self) -> list[Pod] | None:
        """All pods as our follower knows them; None if we do not follow, or they are unknown."""
        return self._following.pods() if self._following is not None else None

    def awaits(self, node: int, pod: Pod) -> bool:
        """Whether we follow the pod's log and it is not complete yet."""
        return self._following is not None and not self._following.has_log(node, pod)

    def bring(self, nodes: Iterable[int]) -> None:
        """Fetch these nodes' logs, too."""
        self.demand.ask(nodes)
        if self._following is not None:
            self._following.follow_wanted()

    def start_following(self) -> bool:
        """Fetch logs as they arrive, in threads, from now on; False if another process does.

        Of a large run each process fetches those that it needs, unless another one does.
        """
        if self._following is not None:
            return True
        if self.demand.of_all and (mine := self.lock()) is None:
            return False
        self._held = mine if self.demand.of_all else None
        container = KINDS[self._handle["kind"]].container
        self._following = Following(self._cluster(), self._handle["run"], self._directory, self.demand, container)
        return True

    def stop_following(self) -> None:
        """Stop, and let another process follow."""
        if self._following is not None:
            self._following.stop()
            self._following = None
            if self._held is not None:
                self._held.close()

    @property
    def failure(self) -> LaunchError | None:
        """Why logs cannot be fetched."""
        return self._following.failure if self._following else None

    def lock(self) -> ExitStack | None:
        """The lock, held until it is closed; None if another process or thread has it."""
        return locked(self._directory / "logs.lock")

    def catch_up(self, pods: Sequence[Sequence[Pod]]) -> None:
        """Fetch new log lines, those of ended pods first, until the time limit."""
        self.demand.hear(pod for known in pods for pod in known)
        wanted = [known for known in pods if known and self._reads(known[-1])]
        wanted = [known for known in wanted if any(pod.has_log for pod in known) and not known[-1].lost]
        if not wanted or self._following is not None or (self.demand.of_all and (lock := self.lock()) is None):
            return
        limit = time.monotonic() + _LIMIT_S + _EACH_S * len(wanted)
        try:
            with ThreadPoolExecutor(8) as pool:
                by_need = sorted(wanted, key=lambda known: not known[-1].ended)
                list(pool.map(lambda known: self._catch_up(known, limit), by_need))
        finally:
            if self.demand.of_all and lock is not None:
                lock.close()

    def _reads(self, pod: Pod) -> bool:
        """Whether a status query reads the log of that pod."""
        if not self.demand.of_all or self.demand.names(pod.node):
            return pod.node in self.demand
        return self._handle["nodes"] <= _FEW_NODES or pod.ended

    def _catch_up(self, known: Sequence[Pod], limit: float) -> None:
        """Fetch new lines of one node's pods, unless another process does."""
        node = known[-1].node
        where, cluster = self._directory / "nodes" / str(node), self._cluster()
        if all(is_stored(where, pod) for pod in known if pod.has_log):
            return
        log = NodeLog(where, node, cluster) if self.demand.of_all else NodeLog.claimed(where, node, cluster)
        if log is None:
            return
        try:
            for pod in known:
                grows = pod.has_log and not log.is_complete(pod)
                while grows and time.monotonic() < limit:
                    before, grows = log.size, False
                    try:
                        log.catch_up(pod)
                    except api.UnreachableError:
                        grows = log.size > before  # the connection has only broken
        finally:
            log.close()
