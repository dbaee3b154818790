"""Variables by which experiment trackers continue a run that is started again, instead of beginning another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, List, Mapping

from ._contract import Variable

if TYPE_CHECKING:
    from ..job import Job

_DECIDED = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")
"""Who sets one of these decides which run Weights & Biases continues."""


def of_trackers(job: Job, rank: int, env: Mapping[str, str]) -> List[Variable]:
    """The variables of a worker; what `env` has already is left as it is.

    Each rank has an id of its own: ranks that share one would write to the same curve. MLflow takes MLFLOW_RUN_ID only
    of a run that its server has already, so its runs get tags by which a script finds them.
    """
    if job.tracking == "off":
        return []
    name = job.tracked_as or job.run
    run = name.replace("/", "-")  # of an array's task
    tags = json.dumps({"distlaunch.run": name, "distlaunch.attempt": str(job.attempt)})
    found = [
        Variable("WANDB_RUN_GROUP", run, "Weights & Biases shows the run's ranks and attempts as one group"),
        Variable("MLFLOW_RUN_CONTEXT", tags, "tags of the run in MLflow, by which an attempt finds that of the last"),
    ]
    if job.tracking == "continue" and not any(name in env for name in _DECIDED):
        own = f"{run}-rank{rank}" if rank else run
        found += [
            Variable("WANDB_RUN_ID", own, "the same after a restart or a move, and different for each rank"),
            Variable("WANDB_RESUME", "allow", "the first attempt begins the run of that id, the others continue it"),
        ]
    return [each for each in found if each.name not in env]
