"""The claim of a run that is queued on several clusters, kept as a ConfigMap: a pod that is started again has it.

Pods mount it if it exists. Once the launcher has granted the claim, it need not live for that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.outputs.signs import GRANTED
from launcher.backends._outputs import RemoteOutputs
from launcher.backends.kubernetes import about, api, objects
from launcher.backends.kubernetes.pod import RUN_LABEL, granted_name
from launcher.system import storage

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.system.pipes import Bridge

_KIND = {"kind": "ConfigMap"}


def is_kept(cluster: Cluster, handle: KubernetesHandle) -> bool:
    """Whether the run has the claim. Raises `ApiError`, `UnreachableError`."""
    path = objects.path_of(_KIND, cluster.namespace)
    return cluster.find(f"{path}/{granted_name(handle['name'])}") is not None


def note(run_dir: Path) -> None:
    """Note here that the run has the claim: the cluster forgets it with the run's objects."""
    storage.write_whole(run_dir / GRANTED, b"", mode=0o600)


def is_noted(run_dir: Path) -> bool:
    """Whether that is noted: another attempt needs no claim."""
    return (run_dir / GRANTED).exists()


class PodOutputs(RemoteOutputs):
    """The files of a node, by an exec in its pod; a grant outlasts that pod."""

    def __init__(self, node: int, bridge: Bridge, cluster: Cluster, handle: KubernetesHandle) -> None:
        super().__init__(f"node {node}'s pod", bridge)
        self._cluster, self._handle = cluster, handle

    def grant(self) -> None:
        """As `Outputs` does; without the right to create the object, only this pod learns of it."""
        try:
            self._keep()
        except (api.ApiError, api.UnreachableError) as error:
            told = api.explained(error, self._cluster, "to keep the run's claim")
            output.warn(f"{told.message}; if its pod is started again, a launcher has to grant it the claim again")
        super().grant()
        note(Path(self._handle["run_dir"]))

    def _keep(self) -> None:
        kind, name = objects.KINDS[self._handle["kind"]], granted_name(self._handle["name"])
        found = self._cluster.find(f"{kind.path.format(self._cluster.namespace)}/{self._handle['name']}") or {}
        meta = {each: _of_user(found, each) for each in ("labels", "annotations")}
        meta["labels"][RUN_LABEL] = self._handle["run"]
        owner = {
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {"name": self._handle["name"], "uid": self._handle["uid"]},
        }  # fmt: skip
        made = {
            "apiVersion": "v1", **_KIND, "immutable": True, "data": {GRANTED: ""}, "metadata": {"name": name, **meta},
        }  # fmt: skip
        try:
            path = objects.path_of(made, self._cluster.namespace)
            self._cluster.call("POST", path, objects.owned(made, owner))
        except api.ApiError as error:
            if error.reason != "AlreadyExists":
                raise


def _of_user(found: dict[str, Any], field: str) -> dict[str, str]:
    """The labels or annotations that the user has given to all objects of a run, as one of them has them."""
    words = found.get("metadata", {}).get(field) or {}
    return {name: text for name, text in words.items() if not name.startswith(("distlaunch/", *about.ADDED))}
