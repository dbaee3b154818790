"""Follows a run's pods and their logs in few threads."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher.backends._files import allow_files
from launcher.backends.kubernetes import api, pod_status
from launcher.backends.kubernetes.logs import NodeLog, is_stored
from launcher.backends.kubernetes.pod import RUN_LABEL
from launcher.backends.kubernetes.turns import Turns
from launcher.errors import LaunchError, StorageError
from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from launcher.backends.kubernetes.demand import Demand
    from launcher.backends.kubernetes.pod_status import Pod
    from launcher.backends.kubernetes.turns import Wait

DOING = "to watch the run"
_WATCH_S = 290
_SILENT_S = 90
"""The API server sends something every minute: a watch that is silent for this long is dead."""

_RETRY_S, _LASTED_S = (0.5, 5.0), 10.0
"""The pauses before the pods are listed again; after a watch that lasted, the first one."""

_SHORT_S = 1.0
"""A watch that ends sooner than this, and without an event, does not work."""

_IDLE_S = 60.0
"""A node without a log to read is woken by what is heard of its pods."""

_HELD_S = 1.0
"""How often a log is asked for that another process brings."""

_FILES_PER_NODE = 4
"""The stream, opened once for writing and once for reading, a connection, and of a large run a lock."""

_STACK_BYTES = 512 * 1024


class Following:
    """A thread watches the pods; a generator per node follows the logs of its pods, one after another."""

    def __init__(
        self, cluster: api.Cluster, run: str, directory: Path, demand: Demand, container: str = "node"
    ) -> None:
        self.failure: LaunchError | None = None
        self._cluster, self._run, self._container = cluster, run, container
        self._directory, self._demand = directory / "nodes", demand
        self._known: dict[str, Pod] = {}
        self._synced = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._logs: dict[int, NodeLog] = {}
        size = threading.stack_size(_STACK_BYTES)
        try:
            self._turns = Turns(self._fail)
            self.follow_wanted()
            threading.Thread(target=listener.carried(self._watch), daemon=True).start()
        finally:
            threading.stack_size(size)

    def pods(self) -> list[Pod] | None:
        """All existing pods; None while they are unknown."""
        with self._lock:
            return list(self._known.values()) if self._synced else None

    def has_log(self, node: int, pod: Pod) -> bool:
        """Whether the pod's log is complete, or is not wanted."""
        if (log := self._logs.get(node)) is not None:
            return log.is_complete(pod)
        return node not in self._demand or is_stored(self._directory / str(node), pod)

    def follow_wanted(self) -> None:
        """Begin with the logs that are wanted and not followed yet."""
        with self._lock:
            wanted = [*self._demand.nodes]
            allow_files(_FILES_PER_NODE * len(wanted))
            for node in wanted:
                if node in self._turns:
                    continue
                if self._demand.of_all:
                    self._logs[node] = NodeLog(self._directory / str(node), node, self._cluster)
                self._turns.add(node, self._follow(node))

    def stop(self) -> None:
        """Stop as soon as possible; nothing is written from now on."""
        self._turns.stop()
        with self._lock:
            self._stop.set()
            logs = [*self._logs.values()]
        for log in logs:
            log.close()

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        pause = _RETRY_S[0]
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                version = self._list()
                while version:
                    version = self._events(version)
            except (api.ApiError, api.UnreachableError) as error:
                if isinstance(error, api.ApiError) and error.status in (401, 403):
                    self._fail(api.explained(error, self._cluster, DOING))
                    return
                with self._lock:
                    self._synced = False
            except Exception as error:  # noqa: BLE001 - an error in a thread is one of the run
                self._fail(error)
                return
            if time.monotonic() - begun > _LASTED_S:
                pause = _RETRY_S[0]
            self._stop.wait(pause)
            pause = min(pause * 1.5, _RETRY_S[1])

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            error = StorageError(f"logs cannot be kept: {error.strerror}")
        self.failure = self.failure or (error if isinstance(error, LaunchError) else LaunchError(f"logs: {error!r}"))

    def _pod(self, item: pod_status.Object) -> Pod | None:
        return pod_status.pod_of(item, self._container, self._cluster.access)

    def _selector(self) -> dict[str, str]:
        return {"labelSelector": f"{RUN_LABEL}={self._run}"}

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._cluster.namespace}/pods"

    def _list(self) -> str:
        """List all pods; returns the version from which to watch for changes."""
        pods, version = api.collect(self._cluster, self._path(), self._selector(), self._pod)
        found = {pod.uid: pod for pod in pods if pod is not None}
        self._demand.hear(found.values())
        with self._lock:
            self._known, self._synced = found, True
        self.follow_wanted()
        for node in self._demand.nodes:
            self._turns.wake(node)
        return version

    def _events(self, version: str) -> str:
        """Take changes as they arrive; returns the version to continue from, or nothing if all must be listed again."""
        query = {**self._selector(), "watch": "true", "resourceVersion": version, "timeoutSeconds": _WATCH_S}
        query["allowWatchBookmarks"] = "true"
        begun, first = time.monotonic(), version
        response = self._cluster.open(self._path(), query, silent_s=_SILENT_S)
        try:
            for lines in api.blocks(response):
                if self._stop.is_set():
                    return ""
                for line in lines:
                    event = _event(line)
                    if event["type"] == "ERROR":
                        return ""
                    self._take(event["type"], event["object"])
                    version = event["object"]["metadata"]["resourceVersion"]
        finally:
            response.close()
        return version if version != first or time.monotonic() - begun > _SHORT_S else ""

    def _take(self, kind: str, item: pod_status.Object) -> None:
        pod = self._pod(item) if kind != "BOOKMARK" else None
        if pod is None:
            return
        self._demand.hear([pod])
        with self._lock:
            if kind == "DELETED":
                self._known.pop(pod.uid, None)
            else:
                self._known[pod.uid] = pod
        if pod.node in self._demand and pod.node not in self._turns:
            self.follow_wanted()
        self._turns.wake(pod.node)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _follow(self, node: int) -> Generator[Wait, None, None]:
        try:
            while (log := self._log(node)) is None:
                yield _HELD_S
            while True:
                if (pod := self._next(node, log)) is None:
                    yield _IDLE_S
                else:
                    yield from log.follow(pod, partial(self._latest, pod.uid))
        except api.ApiError as error:
            self._fail(api.explained(error, self._cluster, "to read the pods' logs"))
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _log(self, node: int) -> NodeLog | None:
        """The node's log; None while another process brings it."""
        with self._lock:
            if node not in self._logs and not self._stop.is_set():
                if (log := NodeLog.claimed(self._directory / str(node), node, self._cluster)) is None:
                    return None
                self._logs[node] = log
            return self._logs.get(node)

    def _next(self, node: int, log: NodeLog) -> Pod | None:
        """The node's oldest pod with a log that is not complete."""
        with self._lock:
            mine = pod_status.by_node((pod for pod in self._known.values() if pod.node == node), node + 1)[node]
        return next((pod for pod in mine if pod.has_log and not log.is_complete(pod)), None)

    def _latest(self, uid: str) -> Pod | None:
        with self._lock:
            return self._known.get(uid)


def _event(line: bytes) -> pod_status.Object:
    try:
        event: pod_status.Object = json.loads(line)
    except ValueError as error:  # the page of a proxy
        raise api.UnreachableError(str(error)) from error
    return event
