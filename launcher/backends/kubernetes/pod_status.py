"""Pods as the cluster describes them, in our terms: whose node each is, and which facts about it are known."""

from __future__ import annotations

import re
import time
from calendar import timegm
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes import kubeflow
from launcher.backends.kubernetes.indexed import LOST_EXIT_CODES, STOPPED_EXIT_CODE
from launcher.backends.kubernetes.parts import FIRST_LABEL
from launcher.backends.kubernetes.pod import NODE_LABEL
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.backends.kubernetes.access import Access

Object = dict[str, Any]

_INDEX_LABELS = (NODE_LABEL, "batch.kubernetes.io/job-completion-index")
OVER = ("Succeeded", "Failed")
"""The phases in which no container of a pod runs any more."""

_LOST_S = 20.0  # beyond the deadline of a pod's deletion
_COUNTS = ("batch.kubernetes.io/job-index-ignored-failure-count", "batch.kubernetes.io/job-index-failure-count")
_USED = ("phase", "reason", "message", "startTime")
_USED_OF_CONDITIONS = ("type", "status", "reason", "message")


@dataclass(frozen=True, slots=True)
class Pod:
    """The facts about one pod; `own` is our container's name, `shared`: whether there are sidecars."""

    node: int
    name: str
    uid: str
    created: str
    phase: str
    host: str
    status: Object = field(repr=False)
    """What we use of it: hundreds of pods are kept, and each has kilobytes that no one reads."""

    deleted: float | None = None
    """The deadline of its removal in unix seconds of this host's clock, once it was deleted."""

    own: str = "node"
    shared: bool = False
    restarts: int = 0
    """How many pods it replaces, as its Job counts: each doubles the time that Kubernetes waits before the next one."""

    @property
    def container(self) -> Object:
        """The state of our container: `{"waiting"|"running"|"terminated": ...}`."""
        state: Object = self._own.get("state") or {}
        return state

    @property
    def _own(self) -> Object:
        statuses = self.status.get("containerStatuses") or ()
        return next((item for item in statuses if item.get("name") == self.own), {})

    @property
    def before(self) -> list[Object]:
        """The statuses of containers that have to start, or to exit, before ours."""
        return list(self.status.get("initContainerStatuses") or ())

    @property
    def waits(self) -> bool:
        """Whether our container has not started yet."""
        return self.phase == "Pending" and not self.has_log

    @property
    def terminated(self) -> Object | None:
        """How our container exited; None if it has not."""
        return self.container.get("terminated")

    @property
    def has_log(self) -> bool:
        """Whether our container has started."""
        return "running" in self.container or "terminated" in self.container

    @property
    def has_run(self) -> bool:
        """Whether a program has started in our container: one that its host cannot start ends, too, in 1970."""
        return self.has_log and str((self.terminated or {}).get("startedAt") or self.created) >= self.created

    @property
    def ended(self) -> bool:
        """Whether our container no longer runs; a sidecar may run forever."""
        return self.phase in OVER or self.terminated is not None

    @property
    def disrupted(self) -> bool:
        """Whether it was disrupted, was asked to stop, or lost another node: a Job then restarts it."""
        code = (self.terminated or {}).get("exitCode")
        return code in (STOPPED_EXIT_CODE, *LOST_EXIT_CODES) or self.condition("DisruptionTarget", "True") is not None

    def condition(self, kind: str, status: str) -> Object | None:
        """The condition of that type, if it has this status."""
        conditions = self.status.get("conditions") or ()
        return next((item for item in conditions if item["type"] == kind and item["status"] == status), None)

    @property
    def overdue(self) -> bool:
        """Whether it should have been removed a while ago: something that has to see its end has not seen it."""
        return self.deleted is not None and self.deleted < time.time() - _LOST_S

    @property
    def lost(self) -> bool:
        """Whether its host is unreachable: the kubelet last reported it as ready, but the control plane disagrees."""
        if self.overdue and not self.ended:
            return True
        believed = self.condition("Ready", "False")
        doubted = believed is not None and not believed.get("reason")  # a kubelet sets one
        return self.phase == "Running" and doubted and self.condition("ContainersReady", "True") is not None


def pod_of(item: Object, own: str = "node", access: Access | None = None) -> Pod | None:
    """The pod, if it is a node of a run.

    `own`: the name of our container; `access` knows the cluster's clock.
    """
    meta = item["metadata"]
    node = _node_of(meta.get("labels") or {}, meta["name"])
    if node is None:
        return None
    deleted = timestamp(meta["deletionTimestamp"]) if "deletionTimestamp" in meta else None
    if deleted is not None and access is not None:
        deleted += access.ahead_s
    status = _used(item.get("status") or {})
    spec = item.get("spec") or {}
    host, shared = str(spec.get("nodeName") or ""), len(spec.get("containers") or ()) > 1
    phase, created = status.get("phase", ""), meta["creationTimestamp"]
    return Pod(node, meta["name"], meta["uid"], created, phase, host, status, deleted, own, shared, restarts_of(item))


def restarts_of(item: Object) -> int:
    """How many times a node's pod was started again before this one, as its Job counts."""
    notes: dict[str, Any] = item["metadata"].get("annotations") or {}
    return sum(int(value) for value in map(notes.get, _COUNTS) if value and re.fullmatch("[0-9]{1,9}", value))


def _used(status: Object) -> Object:
    """What `Pod` uses of a pod's status."""
    found = {key: status[key] for key in _USED if key in status}
    for key in ("containerStatuses", "initContainerStatuses"):
        if items := status.get(key):
            found[key] = [{"name": item.get("name"), "state": item.get("state")} for item in items]
    if items := status.get("conditions"):
        found["conditions"] = [_condition(*map(item.get, _USED_OF_CONDITIONS)) for item in items]
    return found


@lru_cache(256)
def _condition(*values: str | None) -> Object:
    """One object for all pods that are in the same condition."""
    return {key: value for key, value in zip(_USED_OF_CONDITIONS, values, strict=True) if value is not None}


def _node_of(labels: Mapping[str, str], name: str) -> int | None:
    first = labels.get(FIRST_LABEL, "")
    for label in _INDEX_LABELS:
        if labels.get(label, "").isdigit():
            return int(labels[label]) + (int(first) if first.isdigit() else 0)
    return kubeflow.node_of(labels, name)


def by_node(pods: Iterable[Pod], nodes: int) -> list[list[Pod]]:
    """Each node's pods, the newest last."""
    found: list[list[Pod]] = [[] for _ in range(nodes)]
    for pod in sorted(pods, key=lambda pod: (pod.created, not pod.ended, pod.name)):
        if pod.node < nodes:
            found[pod.node].append(pod)
    return found


def timestamp(text: str) -> float:
    """Unix seconds of `2026-11-20T14:00:00Z`."""
    return float(timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
