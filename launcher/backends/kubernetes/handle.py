"""The handle of a run on Kubernetes."""

from __future__ import annotations

from launcher.runs.handle import Handle


class _Submitted(Handle):
    run: str
    name: str
    kind: str
    namespace: str
    context: str
    kubeconfig: str
    """A list of files as in the variable KUBECONFIG; empty in a pod of the cluster."""

    nodes: int
    min_nodes: int
    python: str


class KubernetesHandle(_Submitted, total=False):
    """Kept in `run.json`."""

    uid: str
    """The uid of the object that owns the others, once it exists."""

    roles: dict[str, int]
    """The number of nodes of each role, in their order; missing if the run has none."""

    ignored: list[str]
    """The roles without which the run continues after a failure."""

    grace_s: float
    """The workers' grace time, of a run with roles."""

    attempt: str
    """The annotation by which the objects of this attempt are known, if `requeue` has created them."""

    login: str
    """The login node that reaches the API server."""

    cluster: str
    """The cluster's name in the settings, for messages about the login node."""

    in_part: bool
    """Whether its submission was cut off: objects may be missing."""
