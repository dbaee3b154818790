"""What would be sent over SSH: the directory that ansible-runner gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.backends._base import master_text

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._base import PlannedNode
    from launcher.payload.snapshot import Snapshot


BY_HOST = ("cwd", "workers", "directory", "rendezvous")
"""What of a `Job` is known on its host alone."""


class PlannedSnapshot(TypedDict):
    """The user's files that go along."""

    digest: str
    bytes: int
    files: int


class Planned(TypedDict):
    """What ansible-runner would get."""

    variables: dict[str, Any]
    """Extra variables of the playbook, as its role documents them."""

    settings: dict[str, str]
    """Ansible's, as environment variables."""

    spec: dict[str, Any]
    """What the agents read, as `Job` in launcher/agent/job.py has it, without what each host decides."""

    snapshot: PlannedSnapshot | None
    spares: list[str]
    """Hosts in reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsiblePlan:
    """The directory that ansible-runner gets."""

    run_dir: Path
    inventory: tuple[str, ...]
    settings: dict[str, str]
    """Ansible's, as environment variables."""

    variables: dict[str, Any]
    """Extra variables of the playbook."""

    job: Job
    """What the agents are asked; each host decides `BY_HOST` of it."""

    job_secrets: tuple[str, ...]
    snapshot: Snapshot | None
    nodes: tuple[PlannedNode, ...]
    spares: tuple[str, ...]

    @property
    def master(self) -> str:
        """The first address of node 0 that the others reach."""
        return master_text(self.nodes[0].host, self.job.master_port)

    def request(self) -> dict[str, Any]:
        """The agents' job as far as it is decided here."""
        return self.job.to_json(without=BY_HOST)

    def to_json(self) -> Planned:
        """Variables, settings, the agents' job, and the files by digest."""
        files: PlannedSnapshot | None = None
        if self.snapshot is not None:
            files = {"digest": self.snapshot.digest, "bytes": self.snapshot.total_bytes, "files": len(self.snapshot.files)}
        return {
            "variables": self.variables,
            "settings": self.settings,
            "spec": self.request(),
            "snapshot": files,
            "spares": list(self.spares),
        }
