"""Removes ended runs after their time to live, for kinds that no controller removes: the next command does."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.kubernetes import api, objects, pod_status, states
from launcher.backends.kubernetes.pod import RUN_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.pod_status import Object

_UNSEEN_S = 24 * 3600.0
"""Without pods, nothing tells when a run ended: it counts as ended this long after its creation."""

_SECONDS = re.compile(r"\d{1,12}", re.ASCII)


def sweep(cluster: Cluster, opts: KubernetesOptions) -> None:
    """Delete such runs of the kind in use, with all that they own, as far as possible: nothing depends on it."""
    if opts.kind not in objects.UNTIMED:
        return
    try:
        _sweep(cluster, opts.kind)
    except Exception as error:  # noqa: BLE001 - a missing right, a busy API server, foreign objects
        output.detail(f"ended runs are not removed: {error}")


def listed(cluster: Cluster, kind: str) -> list[Object]:
    """The objects of runs of that kind; ConfigMaps without their data, which may be 24 MB per run."""
    path, accept = objects.KINDS[kind].path.format(cluster.namespace), api.METADATA if kind == "pods" else ""
    found: list[Object] = cluster.call("GET", path, query={"labelSelector": RUN_LABEL}, accept=accept)["items"] or []
    return found


def _sweep(cluster: Cluster, kind: str) -> None:
    namespace = cluster.namespace
    for owner in (item for item in listed(cluster, kind) if "ownerReferences" not in item["metadata"]):
        meta = owner["metadata"]
        if cluster.now() < _lasts(owner, pod_status.timestamp(meta["creationTimestamp"])):
            continue
        ended = _ended(owner)
        if kind == "pods":
            query = {"labelSelector": f"{RUN_LABEL}={meta['labels'][RUN_LABEL]}"}
            pods = cluster.call("GET", f"/api/v1/namespaces/{namespace}/pods", query=query)["items"]
            ended = _pods_ended(pods) if pods else pod_status.timestamp(meta["creationTimestamp"]) + _UNSEEN_S
        if ended is not None and cluster.now() > _lasts(owner, ended):
            body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}}
            try:
                cluster.call("DELETE", f"{objects.KINDS[kind].path.format(namespace)}/{meta['name']}", body)
            except api.ApiError as error:
                output.detail(f"run {meta['name']}, which has ended, is not removed: {error}")


def _lasts(owner: Object, ended: float) -> float:
    """Until when a run stays that ended then, in unix seconds."""
    ttl = (owner["metadata"].get("annotations") or {}).get(objects.TTL_NOTE, "")
    return ended + int(ttl) if _SECONDS.fullmatch(ttl) else math.inf


def _ended(owner: Object) -> float | None:
    """When a workload ended, in unix seconds; None if it has not."""
    end = states.finished(owner)
    return pod_status.timestamp(end["lastTransitionTime"]) if end else None


def _pods_ended(pods: Iterable[Object]) -> float | None:
    """When the last of these pods ended; None if one has not."""
    ends: list[float] = []
    for pod in pods:
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            return None
        told = [
            (item.get("state") or {}).get("terminated") or {} for item in pod["status"].get("containerStatuses") or ()
        ]
        ends += [
            pod_status.timestamp(each.get("finishedAt") or pod["metadata"]["creationTimestamp"])
            for each in told or [{}]
        ]
    return max(ends, default=None)
