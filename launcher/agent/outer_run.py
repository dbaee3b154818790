"""The variables of another run's worker, in which a run was started: a sweep, or a script that submits the next one."""

from __future__ import annotations

import json
from typing import Dict, List, Mapping

RUN_ID = "DISTLAUNCH_RUN_ID"

SET_BY_US = (  # noqa: SIM905 - as few lines as names allow
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE DISTLAUNCH_RUN_ID DISTLAUNCH_ROUND DISTLAUNCH_DEADLINE_FILE "
    "DISTLAUNCH_PROGRESS_FILE DISTLAUNCH_ATTEMPT DISTLAUNCH_ATTEMPT_REASON"
).split()
"""What every worker gets, as from torchrun, whatever the user sets."""

_OF_SOME = (  # noqa: SIM905
    "DISTLAUNCH_RANK DISTLAUNCH_LOCAL_RANK DISTLAUNCH_NODE_RANK DISTLAUNCH_WORLD_SIZE DISTLAUNCH_LOCAL_WORLD_SIZE "
    "DISTLAUNCH_HOSTS DISTLAUNCH_MASTER_ADDR DISTLAUNCH_MASTER_PORT DISTLAUNCH_OUTPUT_DIR DISTLAUNCH_ROLE"
).split()
"""What workers get from some contracts, or on some backends."""


def without_it(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment without what a worker of another run had from distlaunch; what the user has set stays."""
    if RUN_ID not in env:
        return dict(env)
    left_out = {*SET_BY_US, *_OF_SOME, *_of_trackers(env)}
    return {
        name: value for name, value in env.items() if name not in left_out and not name.startswith("DISTLAUNCH_ROLE_")
    }


def settings_of_it(env: Mapping[str, str]) -> List[str]:
    """The variables that look like settings, but tell a worker of another run its place."""
    return [name for name in _OF_SOME if name in env] if RUN_ID in env else []


def _of_trackers(env: Mapping[str, str]) -> List[str]:
    """The variables by which the other run is tracked (`contracts/_tracking.py`), unless they are the user's own."""
    try:
        tags = json.loads(env.get("MLFLOW_RUN_CONTEXT", ""))
        named = tags.get("distlaunch.run") if isinstance(tags, dict) else None
    except (ValueError, RecursionError):
        named = None
    found = ["MLFLOW_RUN_CONTEXT"] if isinstance(named, str) else []
    for name in (env[RUN_ID], named):
        group = name.replace("/", "-") if isinstance(name, str) else ""
        found += ["WANDB_RUN_GROUP"] if group and env.get("WANDB_RUN_GROUP") == group else []
        if group and (env.get("WANDB_RUN_ID") == group or env.get("WANDB_RUN_ID", "").startswith(f"{group}-rank")):
            found += ["WANDB_RUN_ID", "WANDB_RESUME"]
    return found
