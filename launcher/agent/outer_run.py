"""The variables of another run's worker, in which a run was started: a sweep, or a script that submits the next one.

Workers carry a record of what distlaunch has set for them. What is still as it was set then is of that run; all else
is the user's, also under the same name.
"""

from __future__ import annotations

import os
import zlib
from typing import Dict, List, Mapping

RECORD = "DISTLAUNCH_GIVEN"
"""The record: each variable with a checksum of its value."""

SET_BY_US = (
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE DISTLAUNCH_RUN_ID DISTLAUNCH_ROUND DISTLAUNCH_DEADLINE_FILE "
    f"DISTLAUNCH_PROGRESS_FILE DISTLAUNCH_ATTEMPT DISTLAUNCH_ATTEMPT_REASON {RECORD}"
).split()
"""What every worker gets, as from torchrun, whatever the user sets."""

_SHARE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS", "LD_LIBRARY_PATH", "TERM", "SLURM_")
"""So begin those that tell a process what it has of its node, which a run within it has no more of."""


def with_record(env: Mapping[str, str], given: Mapping[str, str]) -> Dict[str, str]:
    """The environment with these variables of this run, and with the record of them."""
    own = {name: value for name, value in given.items() if env.get(name) != value and not name.startswith(_SHARE)}
    noted = {**_record(env), **{name: _checksum(value) for name, value in own.items()}}
    return {**env, **given, RECORD: ",".join(f"{name}:{checksum}" for name, checksum in noted.items())}


def without_it(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment without what a worker of another run had from distlaunch."""
    left_out = {RECORD, *of_it(env)}
    return {name: value for name, value in env.items() if name not in left_out}


def of_it(env: Mapping[str, str]) -> List[str]:
    """The variables by which another run told its worker of itself; some look like settings."""
    return [name for name, checksum in _record(env).items() if name in env and _checksum(env[name]) == checksum]


def _record(env: Mapping[str, str]) -> Dict[str, str]:
    entries = (entry.partition(":") for entry in env.get(RECORD, "").split(",") if entry)
    return {name: checksum for name, _, checksum in entries}


def _checksum(value: str) -> str:
    return f"{zlib.crc32(os.fsencode(value)):08x}"
