"""The plan of a Kubernetes run: its objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from launcher.backends.kubernetes.pod import key_name
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._plan import PlannedNode
    from launcher.backends.kubernetes.objects import Manifest
    from launcher.payload.snapshot import Snapshot


class Planned(TypedDict):
    """What would be sent to a Kubernetes cluster."""

    objects: list[dict[str, Any]]
    """The manifests in the order of their creation, each as the Kubernetes API defines its kind."""

    spec: dict[str, Any]
    """What the agents read: a `Job` of launcher/agent/job.py, for agents of the same version only."""

    secrets: list[str]
    """Names of variables whose values go into a Secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPlan:
    """The objects that would be created, in the order of their creation."""

    run_dir: Path
    name: str
    """The objects' name."""

    inputs: str
    """What the names of the ConfigMaps and Secrets that its pods mount begin with."""

    objects: tuple[Manifest, ...]
    job: Job
    """Content of spec.json."""

    nodes: tuple[PlannedNode, ...]
    secrets: tuple[str, ...]
    """Variables whose values go into a Secret on submission; the plan does not contain them."""

    python: str
    """The interpreter in the pods."""

    snapshot: Snapshot | None
    """The working directory's files, which are in the ConfigMaps."""

    master: str

    @property
    def has_key(self) -> bool:
        """Whether its pods mount a Secret: the key of several nodes, a function, or URLs of receivers."""
        return _mounts([item for item in self.objects if item["kind"] != "ConfigMap"], key_name(self.inputs))

    @property
    def tasks(self) -> tuple[int, ...]:
        """There are no job arrays."""
        return ()

    def to_json(self) -> Planned:
        """The manifests and the spec."""
        return {"objects": list(self.objects), "spec": self.job.to_json(), "secrets": list(self.secrets)}


def _mounts(found: Any, secret: str) -> bool:
    """Whether a pod in it mounts this Secret."""
    if not isinstance(found, dict):
        return isinstance(found, list) and any(_mounts(each, secret) for each in found)
    named = found.get("secret")
    return (isinstance(named, dict) and named.get("name") == secret) or _mounts([*found.values()], secret)
