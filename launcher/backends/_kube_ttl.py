"""Ended runs whose time to live is over, of kinds that no controller removes then: whoever comes next does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.backends import _kube_api as api
from launcher.backends import _kube_objects as objects
from launcher.backends import _kube_states as states
from launcher.backends._kube_pod import RUN_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends._kube_api import Cluster
    from launcher.backends._kube_options import KubernetesOptions
    from launcher.backends._kube_states import Object


def sweep(cluster: Cluster, opts: KubernetesOptions) -> None:
    """Delete those of the kind that is used here, with all that they own. What may not be deleted stays."""
    if opts.kind not in objects.UNTIMED:
        return
    path, query = objects.KINDS[opts.kind].path.format(cluster.namespace), {"labelSelector": RUN_LABEL}
    owners = [item for item in cluster.call("GET", path, query=query)["items"] if "ownerReferences" not in item["metadata"]]
    pods: list[Object] = []
    if owners and opts.kind == "pods":
        pods = cluster.call("GET", f"/api/v1/namespaces/{cluster.namespace}/pods", query=query)["items"]
    for owner in owners:
        meta = owner["metadata"]
        ttl = (meta.get("annotations") or {}).get(objects.TTL_NOTE, "")
        mine = [item for item in pods if item["metadata"]["labels"][RUN_LABEL] == meta["labels"][RUN_LABEL]]
        ended = _pods_ended(mine) if opts.kind == "pods" else _ended(owner)
        if ttl.isdigit() and ended is not None and time.time() > ended + int(ttl):
            body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}}
            try:
                cluster.call("DELETE", f"{path}/{meta['name']}", body)
            except api.ApiError:
                continue


def _ended(owner: Object) -> float | None:
    """When a workload has ended, unix seconds."""
    end = states.finished(owner)
    return states.timestamp(end["lastTransitionTime"]) if end else None


def _pods_ended(pods: Iterable[Object]) -> float | None:
    """When the last of these pods has; None where one has not, or none is there."""
    ends: list[float] = []
    for pod in pods:
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            return None
        told = [(item.get("state") or {}).get("terminated") or {} for item in pod["status"].get("containerStatuses") or ()]
        ends += [states.timestamp(each.get("finishedAt") or pod["metadata"]["creationTimestamp"]) for each in told or [{}]]
    return max(ends, default=None)
