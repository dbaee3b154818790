"""The jobs of all users that are runs of distlaunch, as squeue lists them, and sacct those that have left the queue."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.agent.failures import ENDS, WORST_FIRST, Failure
from launcher.agent.schedulers.slurm import SlurmError, expand, order
from launcher.backends.slurm import control, states, words
from launcher.errors import BackendUnavailableError, CommandError, LaunchError
from launcher.runs import directories
from launcher.system import input_file, numbers, proc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from launcher.results.run import ClusterRun, State

_QUEUED = ("%F", "%K", "%T", "%V", "%u", "%D", "%N", "%k", "%j", "%o")
_ACCOUNTED = ("JobID", "State", "Submit", "User", "NNodes", "NodeList", "JobName", "SubmitLine")
_ACCOUNTED_SINCE = "now-1days"
_SACCT_S = 30
_SUBMITTED = re.compile(r"sbatch (/.*/([^/]+)/job\.sbatch)")
"""What distlaunch runs, as sacct reports it: not every cluster keeps comments there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, or some tasks of an array."""

    run: str
    id: str
    """Without the index of a task."""

    tasks: str
    """Indices as sbatch takes them; empty without an array."""

    state: str
    """In Slurm's terms."""

    submitted: float
    user: str
    nodes: str
    nodelist: str
    name: str
    directory: str
    """The run's; empty if Slurm does not tell."""


def queued() -> list[Job]:
    """The jobs that the controller knows, also some that have ended. Raises `BackendUnavailableError`."""
    argv = ("squeue", "--states=all", "--noheader", f"--format={'|'.join(_QUEUED)}")
    done, said = control.ask(*argv)
    if done.returncode:
        raise BackendUnavailableError(f"squeue: {said}", hint=control.PING)
    found = []
    for line in done.stdout.splitlines():
        fields = line.split("|", len(_QUEUED) - 1)
        run = fields[7].removeprefix("distlaunch:") if len(fields) == len(_QUEUED) else ""
        if run and run != fields[7] and directories.is_id(run):
            job, tasks, state, submitted, user, nodes, nodelist, _, name, file = fields
            found.append(
                Job(
                    run=run,
                    id=job,
                    tasks="" if tasks == "N/A" else tasks,
                    state=state,
                    submitted=_time(submitted),
                    user=user,
                    nodes=nodes,
                    nodelist=nodelist,
                    name=name,
                    directory=_directory(file),
                )
            )
    return found


def accounted(*which: str) -> list[Job]:
    """Those that sacct has, by default of the last day; none without accounting."""
    argv = ("sacct", "--allusers", "--allocations", "--noheader", "--parsable2", f"--format={','.join(_ACCOUNTED)}")
    try:
        done = proc.run((*argv, *(which or (f"--starttime={_ACCOUNTED_SINCE}",))), timeout_s=_SACCT_S)
    except CommandError:
        return []
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        fields = line.split("|", len(_ACCOUNTED) - 1)
        sent = _SUBMITTED.fullmatch(fields[-1]) if len(fields) == len(_ACCOUNTED) else None
        if sent and directories.is_id(sent[2]):
            job, tasks = re.fullmatch(r"(.*?)(?:_\[?([^\]]*)\]?)?", fields[0]).groups()  # type: ignore[union-attr]
            _, state, submitted, user, nodes, nodelist, name, _ = fields
            found.append(
                Job(
                    run=sent[2],
                    id=job,
                    tasks=tasks or "",
                    state=state,
                    submitted=_time(submitted),
                    user=user,
                    nodes=nodes,
                    nodelist=nodelist,
                    name=name,
                    directory=_directory(sent[1]),
                )
            )
    return found


def runs() -> list[ClusterRun]:
    """The runs of these jobs, the newest last; of a run that was started again, its last job."""
    last: dict[str, list[Job]] = {}
    for job in everything():
        if not last.get(job.run) or (job.submitted, job.id) > (last[job.run][0].submitted, last[job.run][0].id):
            last[job.run] = [job]
        elif job.id == last[job.run][0].id:
            last[job.run].append(job)
    topology = _topology() if last else ""
    return sorted((_run(jobs, topology) for jobs in last.values()), key=lambda run: run["created"])


def everything() -> list[Job]:
    """The jobs in the queue, and those that have left it, the newest last."""
    waiting = queued()
    known = {job.id for job in waiting}
    found = [*waiting, *(job for job in accounted() if job.id not in known)]
    return sorted(found, key=lambda job: job.submitted)


def indices(jobs: Sequence[Job]) -> list[int]:
    """Of the tasks of an array, as far as Slurm's text is complete."""
    found: set[int] = set()
    for job in jobs:
        with suppress(LaunchError):
            found.update(words.indices(job.tasks) if job.tasks else ())
    return sorted(found)


def hosts(job: Job, topology: str = "") -> list[str]:
    """By node rank; none before the job starts, or of an array."""
    if job.tasks or job.nodelist in ("", "(null)", "None assigned"):
        return []
    try:
        return order(expand(job.nodelist), topology)
    except SlurmError:
        return []


def spec(directory: str) -> Mapping[str, Any]:
    """The agents' request, if the directory is readable: another user may have written anything."""
    if not directory:
        return {}
    try:
        found = numbers.loads(input_file.read(Path(directory, "spec.json")))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def command(spec: Mapping[str, Any]) -> list[str]:
    """The command in such a request; empty if there is none."""
    found = spec.get("command")
    return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else []


def _run(jobs: list[Job], topology: str) -> ClusterRun:
    first = jobs[0]
    counts = Counter(map(_state, jobs))
    running: tuple[State, ...] = ("running", "pending", "unknown")
    state = next((state for state in running if state in counts), None)
    return {
        "run": first.run,
        "state": state or cast("State", next((word for word in WORST_FIRST if word in counts), "success")),
        "nodes": first.nodes,
        "created": first.submitted,
        "user": first.user,
        "job_id": first.id,
        "hosts": hosts(first, topology),
        "command": command(spec(first.directory)),
    }


def _state(job: Job) -> State:
    """The job's state in our terms."""
    known = states.meaning(job.state)
    if known != "ended":
        return known
    if job.state == "COMPLETED":
        return "success"
    kind = Failure.named((states.ending(job.id, job.state, "") or {}).get("class"))
    return kind if kind in ENDS else "failed"


def _directory(file: str) -> str:
    """The run's directory, by its job file."""
    directory, _, name = file.rpartition("/")
    return directory if name == "job.sbatch" else ""


def _time(text: str) -> float:
    with suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    return 0.0


def _topology() -> str:
    try:
        done, _ = control.ask("scontrol", "show", "topology")
    except LaunchError:
        return ""
    return done.stdout if done.returncode == 0 else ""
