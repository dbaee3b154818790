"""Options that several backends have in the same meaning."""

from __future__ import annotations

from launcher.settings.option import option
from launcher.system.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Options that several backends have in the same meaning: `[defaults]` sets them for each backend that has them.

    A backend declares its own field, whose type decides which of these values it accepts.
    """

    gpus_per_node: str = option("", metavar="[TYPE:]N", help="GPUs per node; one worker each.", group="resources")
    snapshot: bool = option(False, help="Run a copy of the working directory.", group="files")
    project_dir: bool = option(True, help="One directory for all launches from this directory.", group="files")
    max_requeues: int | None = option(None, metavar="N", help="Maximum restarts of the run by the scheduler.")
