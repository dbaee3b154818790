"""Flags of the local backend."""

from __future__ import annotations

from launcher.settings.option import option
from launcher.system.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of the local backend, besides the job's."""

    share_gpus: bool = option(
        False, help="Let simulated nodes see all GPUs instead of an equal share each.", group="resources"
    )
