"""Pods that an operator has created in place of deleted ones, after which the run has ended: no node meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.kubernetes import api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.pod_status import Pod


def end(cluster: Cluster, kind: str, path: str, pods: Sequence[Sequence[Pod]]) -> None:
    """Have the MPI operator delete them, once all nodes of the run have ended; `path`: its MPIJob.

    It replaces a deleted worker until the launcher has ended. Such a pod would wait for `--rdzv-timeout`, with its
    GPUs. From the start, this policy would delete the logs of workers that outlive a launcher that was killed.
    """
    workers = pods[1:]
    if kind != "mpijob" or all(known and known[-1].ended and known[-1].deleted is None for known in workers):
        return
    try:
        cluster.call("PATCH", path, {"spec": {"runPolicy": {"cleanPodPolicy": "Running"}}}, content=api.MERGE)
    except api.ApiError as error:
        output.detail(f"pods that replaced deleted ones may wait for nodes that have ended: {error}")
