"""Where nothing that a run leaves can wait for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import SpecError

if TYPE_CHECKING:
    from launcher.spec import JobSpec


def refuse(spec: JobSpec, why: str) -> None:
    """Raise `SpecError` if a fork server is to stay after the run."""
    if spec.agents.get("warm_s"):
        raise SpecError(f"--warm: {why}", hint="leave it out; it works with local and over SSH")
