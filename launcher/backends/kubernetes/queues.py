"""What is known of a Kueue queue before a run is sent to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import api
from launcher.errors import SpecError

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster

_KUEUE = "/apis/kueue.x-k8s.io/v1beta1"
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def check(cluster: Cluster, queue: str) -> None:
    """Raise `SpecError` for a queue of MultiKueue, as far as one may look.

    MultiKueue copies a Job to another cluster, and not the ConfigMaps and Secrets that its pods mount.
    """
    with suppress(api.ApiError):  # without the right to read queues, it submits as before
        if any(_controller(cluster, name) == _MULTIKUEUE for name in _checks(cluster, queue)):
            raise SpecError(
                f"queue {queue} belongs to MultiKueue, which sends a Job to another cluster, but not the ConfigMaps "
                "and Secrets that its pods mount",
                hint="name those clusters: with --on A,B a run is queued on both, and the first that starts it has it",
            )


def _checks(cluster: Cluster, queue: str) -> list[str]:
    """The admission checks of the ClusterQueue behind it."""
    local = cluster.find(f"{_KUEUE}/namespaces/{cluster.namespace}/localqueues/{queue}")
    name = ((local or {}).get("spec") or {}).get("clusterQueue")
    found = cluster.find(f"{_KUEUE}/clusterqueues/{name}") if name else None
    spec = (found or {}).get("spec") or {}
    listed = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return [*(spec.get("admissionChecks") or ()), *(item["name"] for item in listed)]


def _controller(cluster: Cluster, name: str) -> str:
    found = cluster.find(f"{_KUEUE}/admissionchecks/{name}") or {}
    return str((found.get("spec") or {}).get("controllerName"))
