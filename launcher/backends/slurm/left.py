"""How a job or a step has ended that has left the queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.backends.slurm.control import ask
from launcher.backends.slurm.states import job_of, meaning, of_all
from launcher.errors import CommandError, LaunchError

if TYPE_CHECKING:
    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site
    from launcher.runs.liveness import NodeState

_SACCT_S = 30


def state(site: Site, handle: SlurmHandle) -> tuple[NodeState, str] | None:
    """As sacct has it, with its word; None if it has none. The controller knows better which jobs there are."""
    if (said := _accounted(site, handle)) is None:
        return None
    found = meaning(said)
    try:
        return (found, said) if found == "ended" or has_job(site, job_of(handle)) else ("ended", "")
    except LaunchError as error:
        return "unknown", error.message


def has_job(site: Site, job_id: str) -> bool:
    """Whether a job of any user has not ended. Raises `LaunchError` if the controller does not answer."""
    done, said = ask(site, "squeue", "--noheader", f"--jobs={job_id}", "--format=%A")
    if done.returncode and "Invalid job id" not in said:
        raise CommandError(f"squeue: {said}")
    return re.search(r"^\d", done.stdout, re.MULTILINE) is not None


def _accounted(site: Site, handle: SlurmHandle) -> str | None:
    """The state that sacct has for a job that left the queue; None without accounting, as on many clusters.

    Slurm reuses job ids: the name distinguishes our job from others.
    """
    name = handle.get("step") or handle["name"]
    whose = ("--allusers",) if "user" in handle else ()
    only = () if "step" in handle else ("--allocations",)
    fields = "--format=State%40,JobName%200"
    argv = ("sacct", "--jobs", job_of(handle), *whose, *only, "--noheader", "--parsable2", fields)
    try:
        done = site.run(argv, timeout_s=_SACCT_S)
    except CommandError:
        return None
    rows = [line.split("|", 1) for line in done.stdout.splitlines() if "|" in line]
    states = [state for state, its_name in rows if its_name == name]
    return of_all(states) if done.returncode == 0 and states else None
