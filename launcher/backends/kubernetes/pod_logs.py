"""The logs of a run's pods, fetched into its directory: followed by at most one process, or updated on request."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import api
from launcher.backends.kubernetes.following import Following
from launcher.backends.kubernetes.logs import NodeLog
from launcher.backends.kubernetes.objects import KINDS
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.pod_status import Pod
    from launcher.errors import LaunchError

_LIMIT_S = 10.0
"""How long a status query waits for new log lines."""

_FEW_NODES = 32
"""For a larger run, a status query reads only the logs of node 0 and of ended nodes."""


class PodLogs:
    """Fetches the logs, unless another process does."""

    def __init__(self, directory: Path, handle: KubernetesHandle, cluster: Callable[[], api.Cluster]) -> None:
        """`cluster` is called when the cluster is first needed."""
        self._directory, self._handle, self._cluster = directory, handle, cluster
        self._following: Following | None = None
        self._lock_fd = -1

    def pods(self) -> list[Pod] | None:
        """All pods as our follower knows them; None if we do not follow, or they are unknown."""
        return self._following.pods() if self._following is not None else None

    def awaits(self, node: int, pod: Pod) -> bool:
        """Whether we follow the pod's log and it is not complete yet."""
        return self._following is not None and not self._following.has_log(node, pod)

    def start_following(self) -> bool:
        """Fetch all logs as they arrive, in threads, from now on; False if another process does."""
        if self._following is not None:
            return True
        if (mine := self.lock()) is None:
            return False
        self._lock_fd = mine
        self._following = Following(
            self._cluster(),
            self._handle["run"],
            self._directory,
            self._handle["nodes"],
            KINDS[self._handle["kind"]].container,
        )
        return True

    def stop_following(self) -> None:
        """Stop, and let another process follow."""
        if self._following is not None:
            self._following.stop()
            self._following = None
            os.close(self._lock_fd)

    @property
    def failure(self) -> LaunchError | None:
        """Why logs cannot be fetched."""
        return self._following.failure if self._following else None

    def lock(self) -> int | None:
        """A descriptor that holds the lock until it is closed; None if another process or thread has it."""
        with storage.storage_errors(self._directory):
            found = os.open(self._directory / "logs.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(found)
            return None
        return found

    def catch_up(self, pods: Sequence[Sequence[Pod]]) -> None:
        """Fetch new log lines, those of ended pods first, until the time limit."""
        wanted = [
            known for known in pods if known and (len(pods) <= _FEW_NODES or known[-1].node == 0 or known[-1].ended)
        ]
        wanted = [known for known in wanted if any(pod.has_log for pod in known) and not known[-1].lost]
        if not wanted or self._following is not None or (lock := self.lock()) is None:
            return
        limit = time.monotonic() + _LIMIT_S

        def read(known: Sequence[Pod]) -> None:
            log = NodeLog(self._directory / "nodes" / str(known[-1].node), known[-1].node, self._cluster())
            try:
                for pod in known:
                    if pod.has_log and not log.is_complete(pod) and time.monotonic() < limit:
                        with contextlib.suppress(api.UnreachableError):
                            log.catch_up(pod)
            finally:
                log.close()

        try:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(read, sorted(wanted, key=lambda known: not known[-1].ended)))
        finally:
            os.close(lock)
