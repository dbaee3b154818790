"""What runs with `--warm` leave standing: where that is refused, and what stands on this machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from launcher.agent.warm import records
from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.results.warm import WarmServer
    from launcher.spec import JobSpec


def refuse(spec: JobSpec, why: str) -> None:
    """Raise `SpecError` if a fork server is to stay after the run."""
    if spec.agents.get("warm_s"):
        raise SpecError(f"--warm: {why}", hint="leave it out; it works with local and over SSH")


def here(*, end: bool) -> list[WarmServer]:
    """This user's fork servers that stand on this machine, the newest first; `end`: those that were ended now."""
    return [server(socket.gethostname(), each) for each in records.listed(end_all=end)]


def server(host: str, said: Mapping[str, Any]) -> WarmServer:
    """One of them, as that host's `records.listed` has it."""
    return {
        "host": host,
        "pid": said["pid"],
        "python": said["python"],
        "modules": said["modules"],
        "since": said["since"],
        "until": said["until"],
        "runs": said["runs"],
        "memory_bytes": said["memory_bytes"],
    }
