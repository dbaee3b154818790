"""What Slurm reports about the nodes of a job, and what its output says about nodes that could not start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.backends.slurm import allocation, left, times
from launcher.backends.slurm.handle import directory_of
from launcher.backends.slurm.states import ending, explain, job_of, lost_host, meaning, not_started
from launcher.runs.liveness import Liveness
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site
    from launcher.backends.slurm.submitit import Queue
    from launcher.runs.liveness import NodeState


def liveness(site: Site, handle: SlurmHandle, queue: Callable[[], Queue]) -> Liveness:
    """What squeue reports, then sacct; without accounting, a job or step that is not in the queue has ended."""
    job_id, directory = handle.get("step_id") or job_of(handle), directory_of(handle)
    output = directory / "job.out", handle.get("printed", 0)
    found, said, reason = (*allocation.state(site, handle), "") if "step" in handle else _of_job(handle, queue())
    private = "elsewhere" in handle and not os.access(handle["elsewhere"], os.R_OK | os.X_OK)
    if private and not said:  # neither its nodes nor Slurm tell how it ended
        found = "unknown"
        return Liveness(nodes=(found,) * handle["nodes"], detail=f"Slurm has forgotten job {job_id}")
    cause = ending(job_id, said, reason) if found == "ended" else None
    if cause and reason == "JobLaunchFailure":
        cause["message"] += _way_out(handle)
    if cause and cause["class"] == Failure.NODE and (host := lost_host(*output)):
        cause["host"] = host
    if private and found == "ended" and cause is None:
        cause = {"class": Failure.USER_CODE, "message": f"Slurm ended job {job_id}, state {said}", "host": None}
    states, causes = [found] * handle["nodes"], dict.fromkeys(range(handle["nodes"]), cause) if cause else {}
    if found != "pending" and not causes:  # a task may have failed to start while srun waits for the others
        silent = (rank for rank in range(handle["nodes"]) if not os.path.exists(directory / f"nodes/{rank}/stream"))
        for (host, why), rank in zip(not_started(*output).items(), silent, strict=False):
            states[rank] = "ended"
            causes[rank] = {
                "class": Failure.NODE,
                "message": f"the agent could not start on {host}: {why}{_way_out(handle, why)}",
                "host": host,
            }
    return Liveness(nodes=tuple(states), detail=said, causes=causes, succeeded=private and said == "COMPLETED")


def _way_out(handle: SlurmHandle, why: str = "No such file") -> str:
    """What to change if a node does not see the run's directory on the cluster."""
    if "remote" not in handle or "No such file" not in why:
        return ""
    return f"; do all nodes see {handle['remote']}? If not, name another remote_dir"


def _of_job(handle: SlurmHandle, queue: Queue) -> tuple[NodeState, str, str]:
    """A job's state, Slurm's words for it, and Slurm's reason."""
    job_id = job_of(handle)
    row = queue.of(handle, now=_last_word_said(handle))
    if row is not None:
        found, said = meaning(row["state"]), row["state"]
        if found == "pending":
            start = "" if row["start"] in ("N/A", "") else f", expected start {times.shown(row['start'])}"
            why = f": {explain(row['reason'])}" if row["reason"] not in ("", "None") else ", and Slurm has not said why"
            said = f"job {job_id} waits{why}{start}"
        return found, said, row["reason"]
    if not queue.reached:
        return "unknown", "squeue does not answer", ""
    return (*(left.state(queue.site, handle) or ("ended", "")), "")


def _last_word_said(handle: SlurmHandle) -> bool:
    """Whether the first node's agent has sent its final event: Slurm's state is then worth an immediate query."""
    try:
        last = input_file.end_of(directory_of(handle) / "nodes/0/stream", 65536)
        return last.rstrip(b"\n").rpartition(b"\n")[2].startswith(b'{"event":"done"')
    except OSError:
        return False
