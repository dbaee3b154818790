"""Steps of allocations that are runs: they have no comment, so their names are the runs' ids."""

from __future__ import annotations

import pwd
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.schedulers.slurm import SlurmError, expand
from launcher.backends.slurm.control import ask, signal_word
from launcher.errors import CommandError, LaunchError
from launcher.runs import directories

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site

SENT = re.compile(r"srun .* --spec (/.*)/spec\.json --slurm")
"""What distlaunch runs, as sacct reports it."""

_OF_GROUP = re.compile(r"\+\d+(?=\.)")
_SRUN = re.compile(r"StepId=(\S+) .*\bSrunHost:Pid=(\S+):(\d+)")


class Step(NamedTuple):
    """A running step, in squeue's words."""

    id: str
    name: str
    user: str
    started: str
    nodelist: str


def running(site: Site, *which: str) -> list[Step]:
    """The running steps; with ids of jobs, only theirs. Raises `LaunchError` if the controller does not answer."""
    jobs = [f"--jobs={','.join(which)}"] if which else []
    done, said = ask(site, "squeue", "--steps", "--noheader", *jobs, "--format=%i|%j|%u|%S|%N")
    if done.returncode and "Invalid job id" not in said:
        raise CommandError(f"squeue: {said}")
    rows = (line.strip().split("|") for line in done.stdout.splitlines())
    return [Step(*row) for row in rows if len(row) == len(Step._fields)]


def runs(site: Site) -> list[Step]:
    """The steps that are runs. In a heterogeneous job, squeue has one row for each group: they are one step."""
    found: dict[str, Step] = {}
    for step in sorted(running(site), key=lambda step: (len(step.id), step.id)):
        if directories.is_id(step.name):
            first = found.setdefault(step.name, step)
            if first is not step:
                found[step.name] = first._replace(nodelist=f"{first.nodelist},{step.nodelist}")
    return list(found.values())


def of(site: Site, handle: SlurmHandle) -> str | None:
    """`JOB.STEP` of a run that is a step, while it runs."""
    return next((step.id for step in running(site, handle["job_id"]) if step.name == handle["step"]), None)


def plain_id(text: str) -> str:
    """The id of a step without the group of a heterogeneous job, which sacct adds."""
    return _OF_GROUP.sub("", text)


def count(nodelist: str) -> str:
    """The number of nodes in it; empty if it is not one."""
    with suppress(SlurmError):
        return str(len(expand(nodelist)))
    return ""


def directories_of(site: Site, found: Iterable[Step]) -> dict[str, str]:
    """The run's directory by step: from the command line of its srun here, else the default one if it exists."""
    asked = list(found)
    if not asked:
        return {}
    try:
        done, _ = ask(site, "scontrol", "--oneliner", "show", "steps")
        here = socket.gethostname().partition(".")[0]
        pids = {step: pid for step, host, pid in _SRUN.findall(done.stdout) if host.partition(".")[0] == here}
    except LaunchError:
        pids = {}
    return {step.id: _of_srun(pids.get(step.id, "")) or _by_default(step) for step in asked}


def _of_srun(pid: str) -> str:
    try:
        words = Path("/proc", pid or "0", "cmdline").read_text(errors="surrogateescape").split("\0")
    except OSError:
        return ""
    found = SENT.match(" ".join(["srun", *words[1:]]).strip())
    return found[1] if found else ""


def _by_default(step: Step) -> str:
    with suppress(KeyError, OSError):
        path = Path(pwd.getpwnam(step.user).pw_dir, ".distlaunch", "runs", step.name)
        return str(path) if path.is_dir() else ""
    return ""


def send(site: Site, step: str, number: int) -> None:
    """Signal the processes of a step."""
    done, said = ask(site, "scancel", f"--signal={signal_word(number)}", step)
    # Slurm 22.05 signals the step and then complains about the job's id.
    if done.returncode and not re.search("already completing|Invalid job id", said):
        raise CommandError(f"scancel: {said.removeprefix('scancel: error: ')}")


def _components(site: Site, job_id: str) -> list[str]:
    """The ids of the jobs of which a heterogeneous job consists; of another one, its own."""
    done, _ = ask(site, "squeue", "--noheader", f"--jobs={job_id}", "--format=%i|%A")
    rows = (line.strip().partition("|") for line in done.stdout.splitlines())
    return [number for name, _, number in rows if "+" in name] or [job_id]


def kill_all(site: Site, job_id: str) -> None:
    """Send SIGKILL to each step of a job: for the whole job, Slurm would send SIGTERM first and wait for KillWait."""
    for step in running(site, *_components(site, job_id)):
        if step.id.rpartition(".")[2].isdigit():  # not `batch`, the job file itself
            send(site, step.id, signal.SIGKILL)
