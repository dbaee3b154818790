"""Has Slurm requeue a running job, and waits for one that is about to end."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.slurm import behind_login, clusters, control
from launcher.backends.slurm.handle import directory_of
from launcher.backends.slurm.states import explain, job_of, meaning
from launcher.errors import BackendUnavailableError, CommandError, RequestError

if TYPE_CHECKING:
    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site
    from launcher.backends.slurm.submitit import Queue

_ENDS_S = 60.0
_LOOK_S = 0.5


def requeued(queue: Queue, handle: SlurmHandle) -> bool:
    """Have Slurm requeue a running job; False if it has ended, or was ending and has ended now."""
    job_id, limit = job_of(handle), time.monotonic() + _ENDS_S
    cancelled = os.path.exists(directory_of(handle) / "cancel.json")
    while True:
        row = queue.of(handle, now=True)
        if not queue.reached:
            raise BackendUnavailableError(queue.refusal, hint=control.PING)
        if row is None or meaning(row["state"]) == "ended":
            return False
        if meaning(row["state"]) == "pending":
            raise RequestError(f"job {job_id} waits already: {explain(row['reason'])}")
        if not cancelled and row["state"] != "COMPLETING" and _accepted(queue.site, handle):
            return True
        if time.monotonic() > limit:
            run = Path(handle["run_dir"]).name
            raise RequestError(
                f"job {job_id} is being ended, and still runs after {_ENDS_S:.0f} s",
                hint=f"distlaunch cancel --force {run} ends it at once; then distlaunch requeue {run}",
            )
        output.progress(f"waiting up to {_ENDS_S:.0f} s for job {job_id} to end")
        time.sleep(_LOOK_S)


def anew(site: Site, handle: SlurmHandle) -> SlurmHandle:
    """The handle of a run that has ended, for its next job: what `job.out` says of nodes so far is not about that."""
    begun: SlurmHandle = {**handle, "besides": ",".join(filter(None, [handle.get("besides", ""), job_of(handle)]))}
    if site.login:
        begun["printed"] = behind_login.printed(site.login, handle)
    else:
        with suppress(OSError):
            begun["printed"] = (directory_of(handle) / "job.out").stat().st_size
    del begun["job_id"]
    return begun


def _accepted(site: Site, handle: SlurmHandle) -> bool:
    """Whether Slurm requeues the job; False if the job is just ending."""
    job_id, run = job_of(handle), Path(handle["run_dir"]).name
    done, said = control.ask(clusters.running(site, handle), "scontrol", "requeue", job_id)
    if not done.returncode:
        return True
    if "already completing or completed" in said:
        return False
    if "presently disabled" in said:
        raise RequestError(
            f"Slurm does not requeue job {job_id} while it runs: requeueing is off for it (--max-requeues 0, or by the"
            " cluster's default)",
            hint=f"distlaunch cancel {run}, then distlaunch requeue {run}",
        )
    raise CommandError(f"scontrol: {said or f'exit code {done.returncode}'}")
