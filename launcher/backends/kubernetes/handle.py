"""What a run on Kubernetes is found by."""

from __future__ import annotations

from launcher.runs.handle import Handle


class _Submitted(Handle):
    run: str
    name: str
    kind: str
    namespace: str
    context: str
    kubeconfig: str
    """Files as in the variable KUBECONFIG; empty in a pod of the cluster."""

    nodes: int
    min_nodes: int
    python: str


class KubernetesHandle(_Submitted, total=False):
    """Kept in `run.json`."""

    uid: str
    """Of the object that owns the others, once it is there."""
