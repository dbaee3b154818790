"""Warn about a run that asks for no GPU in a cluster that has some."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.kubernetes import api

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.plan import KubernetesPlan

_NODES = 50
"""At most so many nodes are looked at: each takes tens of kilobytes."""


def warn(cluster: Cluster, opts: KubernetesOptions, plan: KubernetesPlan) -> None:
    """Say how many nodes have GPUs, if the user may list nodes: a namespace is enough for everything else."""
    if opts.gpus_per_node is not None or f'"{opts.gpu_resource}":' in json.dumps(plan.objects):
        return
    try:
        nodes = cluster.call("GET", "/api/v1/nodes", query={"limit": _NODES}).get("items") or ()
    except (api.ApiError, api.UnreachableError):
        return
    counts = [(node.get("status") or {}).get("allocatable", {}).get(opts.gpu_resource, "0") for node in nodes]
    if have := [count for count in counts if count != "0"]:
        output.warn(
            f"{len(have)} of {len(counts)} nodes have {opts.gpu_resource}, and the run asks for none: "
            "--gpus-per-node N asks for some, --gpus-per-node 0 says that it needs none"
        )
