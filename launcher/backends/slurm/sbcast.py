"""How the agent reaches many nodes: Slurm's sbcast passes it on from node to node, to their own disks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launcher.agent.secret_files import FUNCTION_FILE, KEY_FILE, NOTIFY_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends.slurm.options import SlurmOptions
    from launcher.spec import JobSpec

BESIDE = (KEY_FILE, FUNCTION_FILE, NOTIFY_FILE)
"""What agents read next to the spec, if it is there."""

_OF_STEP = ("--ntasks-per-node=1", "--mpi=none", "--input=none")


def names(
    spec: JobSpec, opts: SlurmOptions, agent: Sequence[str], *, is_step: bool, may_move: bool
) -> Mapping[str, Any]:
    """What the job file's template needs for it, as `sbcast`; None if the nodes read the agent from the shared disk.

    `agent`: its command line. `is_step`: whether the run is a step of a job that is there.
    `may_move`: whether the run's directory is where its spec is, wherever that is.
    """
    nodes = sum(role.job.nodes.max for role in spec.roles) or spec.nodes.max
    if is_step or opts.container_image or nodes <= opts.sbcast_above:
        return {"sbcast": None}
    jobs, step = '"$SLURM_JOB_ID"', [*_OF_STEP]
    if spec.roles:
        jobs = " ".join(f'"$SLURM_JOB_ID_HET_GROUP_{number}"' for number in range(len(spec.roles)))
        step = [f"--het-group=0-{len(spec.roles) - 1}", *_OF_STEP]
    file, spec_file = (agent[agent.index("--spec") + by] for by in (-1, 1))
    top = os.path.dirname(spec_file)
    files = [file, *([] if may_move else [spec_file, *(f"{top}/{name}" for name in BESIDE)])]
    found = {"nodes": nodes, "agent": file, "spec": spec_file, "files": files}
    return {"sbcast": {**found, "directory": opts.node_dir, "jobs": jobs, "step": step}}
