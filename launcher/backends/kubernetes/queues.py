"""What is known of a Kueue queue before a run is sent to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import api
from launcher.errors import BackendUnavailableError, SpecError

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster

_KUEUE = "/apis/kueue.x-k8s.io"
_VERSIONS = ("v1beta2", "v1beta1")
"""Of Kueue's API, as clusters serve one or both; what is read here is the same in both."""

_MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def check(cluster: Cluster, queue: str) -> None:
    """Raise `BackendUnavailableError` without Kueue, and `SpecError` without this queue, or for one of MultiKueue.

    Without the right to read queues, any may be named. MultiKueue copies a Job to another cluster, and not the
    ConfigMaps and Secrets that its pods mount.
    """
    served = {item["version"] for item in (cluster.find(_KUEUE) or {"versions": ()})["versions"]}
    version = next((each for each in _VERSIONS if each in served), "")
    if not version:
        known = f"kueue.x-k8s.io/{' or '.join(_VERSIONS)}"
        raise BackendUnavailableError(
            f"the cluster has no LocalQueue ({known})", hint="without --queue it needs no Kueue"
        )
    kueue = f"{_KUEUE}/{version}"
    with suppress(api.ApiError):
        if any(_controller(cluster, kueue, name) == _MULTIKUEUE for name in _checks(cluster, kueue, queue)):
            raise SpecError(
                f"queue {queue} belongs to MultiKueue, which sends a Job to another cluster, but not the ConfigMaps "
                "and Secrets that its pods mount",
                hint="name those clusters: with --on A,B a run is queued on both, and the first that starts it has it",
            )


def _checks(cluster: Cluster, kueue: str, queue: str) -> list[str]:
    """The admission checks of the ClusterQueue behind it. Raises `SpecError` if it does not exist."""
    path = f"{kueue}/namespaces/{cluster.namespace}/localqueues"
    if (local := cluster.find(f"{path}/{queue}")) is None:
        known: list[str] = []
        with suppress(api.ApiError):
            known, _ = api.collect(cluster, path, {}, lambda item: str(item["metadata"]["name"]))
        hint = f"known: {', '.join(known)}" if known else None
        raise SpecError(f"there is no LocalQueue {queue!r} in namespace {cluster.namespace!r}", hint=hint)
    name = (local.get("spec") or {}).get("clusterQueue")
    found = cluster.find(f"{kueue}/clusterqueues/{name}") if name else None
    spec = (found or {}).get("spec") or {}
    listed = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return [*(spec.get("admissionChecks") or ()), *(item["name"] for item in listed)]


def _controller(cluster: Cluster, kueue: str, name: str) -> str:
    found = cluster.find(f"{kueue}/admissionchecks/{name}") or {}
    return str((found.get("spec") or {}).get("controllerName"))


def waiting(cluster: Cluster, queue: str) -> int | None:
    """How many workloads wait in that queue; None if there is none, or it cannot be read."""
    path = f"namespaces/{cluster.namespace}/localqueues/{queue}"
    try:
        versions = (cluster.find(f"{_KUEUE}/{version}/{path}") for version in _VERSIONS)
        found = next(filter(None, versions), None) if queue else None
    except api.ApiError:
        return None
    return None if found is None else int((found.get("status") or {}).get("pendingWorkloads") or 0)
