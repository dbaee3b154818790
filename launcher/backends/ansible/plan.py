"""What would be sent over SSH: the directory that ansible-runner gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from launcher.backends._base import master_text
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._plan import PlannedNode
    from launcher.payload.snapshot import Snapshot


BY_HOST = ("cwd", "workers", "directory", "rendezvous")
"""The fields of a `Job` that only its host knows."""


class PlannedSnapshot(TypedDict):
    """The user's files that are sent along."""

    digest: str
    bytes: int
    files: int


class Planned(TypedDict):
    """What ansible-runner would get."""

    variables: dict[str, Any]
    """Extra variables of the playbook, as its role documents them."""

    settings: dict[str, str]
    """Ansible's settings, as environment variables."""

    spec: dict[str, Any]
    """What the agents read, in the form of `Job` in launcher/agent/job.py, without what each host decides."""

    snapshot: PlannedSnapshot | None
    spares: list[str]
    """Spare hosts."""

    setup: list[str]
    """Shell lines that run before each host's Python."""

    container: dict[str, Any] | None
    """`runtime`, `image`, `mounts` and `python` of the container that the agents run in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsiblePlan:
    """The directory that ansible-runner gets."""

    run_dir: Path
    inventory: tuple[str, ...]
    settings: dict[str, str]
    """Ansible's settings, as environment variables."""

    variables: dict[str, Any]
    """Extra variables of the playbook."""

    job: Job
    """The agents' job; each host decides the fields in `BY_HOST`."""

    job_secrets: tuple[str, ...]
    snapshot: Snapshot | None
    nodes: tuple[PlannedNode, ...]
    spares: tuple[str, ...]
    setup: str = ""
    """Shell lines that run before each host's Python."""

    container: Mapping[str, Any] | None = None
    """`runtime`, `image`, `mounts` and `python` of the container that the agents run in."""

    @property
    def tasks(self) -> tuple[int, ...]:
        """There are no job arrays."""
        return ()

    @property
    def master(self) -> str:
        """Node 0's host; the others use the first of its addresses that they reach."""
        return master_text(self.nodes[0].host, self.job.master_port)

    def request(self) -> dict[str, Any]:
        """The part of the agents' job that is decided here."""
        return self.job.to_json(without=BY_HOST)

    def to_json(self) -> Planned:
        """Variables, settings, the agents' job, and the files' digest."""
        files: PlannedSnapshot | None = None
        if self.snapshot is not None:
            files = {
                "digest": self.snapshot.digest,
                "bytes": self.snapshot.total_bytes,
                "files": len(self.snapshot.files),
            }
        return {
            "variables": self.variables,
            "settings": self.settings,
            "spec": self.request(),
            "snapshot": files,
            "spares": list(self.spares),
            "setup": self.setup.splitlines(),
            "container": None if self.container is None else dict(self.container),
        }
