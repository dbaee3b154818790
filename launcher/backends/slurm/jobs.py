"""The jobs and steps of all users that are runs of distlaunch, as squeue lists them, then sacct."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher import output
from launcher.agent.failures import ENDS, WORST_FIRST, Failure
from launcher.agent.schedulers.slurm import SlurmError, expand, order
from launcher.backends.slurm import control, states, steps, times, words
from launcher.backends.slurm.job import Job, joined
from launcher.errors import BackendUnavailableError, CommandError, LaunchError
from launcher.runs import directories
from launcher.system import numbers, proc, storage
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from launcher.backends.slurm.site import Site
    from launcher.results.run import ClusterRun, State

_QUEUED = ("%i", "%K", "%T", "%V", "%u", "%D", "%N", "%k", "%j", "%o")
_ACCOUNTED = ("JobID", "State", "Submit", "User", "NNodes", "NodeList", "JobName", "SubmitLine")
_ACCOUNTED_SINCE = "now-1days"
_SACCT_S = 30
_MISSING = "runs that have left Slurm's queue are missing"
_SUBMITTED = re.compile(r"sbatch (/.*/([^/]+)/job\.sbatch)")
"""What distlaunch runs, as sacct reports it: not every cluster keeps comments there."""


def queued(site: Site) -> list[Job]:
    """The jobs that the controller knows, also some that have ended. Raises `BackendUnavailableError`."""
    argv = ("squeue", "--states=all", "--noheader", f"--format={'|'.join(_QUEUED)}")
    done, said = control.ask(site, *argv)
    if done.returncode:
        raise BackendUnavailableError(f"squeue: {said}", hint=control.PING)
    found = []
    for line in done.stdout.splitlines():
        fields = line.split("|", len(_QUEUED) - 1)
        run = fields[7].removeprefix("distlaunch:") if len(fields) == len(_QUEUED) else ""
        revoked = site.clusters and fields[2:3] == ["REVOKED"]  # in a federation, it has started elsewhere
        if run and run != fields[7] and directories.is_id(run) and not revoked:
            job, tasks, state, submitted, user, nodes, nodelist, _, name, file = fields
            found.append(
                Job(
                    run=run,
                    id=re.split("[_+]", job)[0],
                    tasks="" if tasks == "N/A" else tasks,
                    state=state,
                    submitted=times.assumed(submitted),
                    user=user,
                    nodes=nodes,
                    nodelist=nodelist,
                    name=name,
                    directory=_directory(file),
                    groups=(nodelist,) if "+" in job else (),
                )
            )
    grouped = joined(job for job in found if job.groups)
    return [*(job for job in found if not job.groups), *grouped.values()]


def of_steps(site: Site) -> list[Job]:
    """The running steps that are runs. Raises `LaunchError`."""
    found = steps.runs(site)
    where = steps.directories_of(site, found)
    return [
        Job(
            run=step.name,
            id=step.id,
            tasks="",
            state="RUNNING",
            submitted=times.assumed(step.started),
            user=step.user,
            nodes=steps.count(step.nodelist),
            nodelist=step.nodelist,
            name=directories.name_of(step.name),
            directory=where[step.id],
        )
        for step in found
    ]


def accounted(site: Site, *which: str) -> list[Job]:
    """Those that sacct has, by default of the last day; none without accounting. Warns if it does not answer."""
    argv = ("sacct", "--allusers", "--noheader", "--parsable2", f"--format={','.join(_ACCOUNTED)}")
    try:
        done = site.run((*argv, *(which or (f"--starttime={_ACCOUNTED_SINCE}",))), timeout_s=_SACCT_S)
    except CommandError as error:
        if site.has("sacct"):
            output.warn(f"{_MISSING}: {error.message}")
        return []
    if done.returncode:
        said = proc.in_one_line(done.stderr)
        if "is disabled" not in said:  # as on many clusters
            output.warn(f"{_MISSING}: {said or f'sacct: exit code {done.returncode}'}")
        return []
    rows = [line.split("|", len(_ACCOUNTED) - 1) for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_ACCOUNTED)]
    users = {row[0]: row[3] for row in rows if "." not in row[0]}
    of_rows = (_step(row, users.get(row[0].rpartition(".")[0], "")) if "." in row[0] else _job(row) for row in rows)
    return list(joined(job for job in of_rows if job is not None).values())


def _job(row: list[str]) -> Job | None:
    """A job of sacct's; None if it is no run."""
    sent = _SUBMITTED.fullmatch(row[-1])
    if sent is None or not directories.is_id(sent[2]):
        return None
    job, group, tasks = re.fullmatch(r"(.*?)(\+\d+)?(?:_\[?([^\]]*)\]?)?", row[0]).groups()  # type: ignore[union-attr]
    found = _accounted(row, sent[2], (job, tasks or ""), user=row[3], directory=_directory(sent[1]))
    return replace(found, groups=(found.nodelist,)) if group else found


def _step(row: list[str], user: str) -> Job | None:
    """A step of sacct's; None if it is no run."""
    sent = steps.SENT.fullmatch(row[-1])
    if sent is None or not directories.is_id(row[6]):
        return None
    return _accounted(row, row[6], (steps.plain_id(row[0]), ""), user=user, directory=sent[1])


def _accounted(row: list[str], run: str, which: tuple[str, str], *, user: str, directory: str) -> Job:
    _, state, submitted, _, nodes, nodelist, name, _ = row
    return Job(
        run=run,
        id=which[0],
        tasks=which[1],
        state=state,
        submitted=times.assumed(submitted),
        user=user,
        nodes=nodes,
        nodelist=nodelist,
        name=name,
        directory=directory,
    )


def runs(site: Site) -> list[ClusterRun]:
    """The runs of these jobs, the newest last; of a run that was started again, its last job."""
    last: dict[str, list[Job]] = {}
    for job in everything(site):
        first = last.setdefault(job.run, [job])[0]
        if job is not first and job.id == first.id:
            last[job.run].append(job)
        elif (job.submitted, job.id) > (first.submitted, first.id):
            last[job.run] = [job]
    topology = _topology(site) if last else ""
    wanted = specs(site, [jobs[0].directory for jobs in last.values()])
    return sorted((_run(jobs, topology, wanted) for jobs in last.values()), key=lambda run: run["created"])


def everything(site: Site) -> list[Job]:
    """The jobs in the queue and the running steps, and those that have left, the newest last."""
    past = {(job.id, job.tasks, job.run): job for job in accounted(site)}  # two clusters may use one id
    jobs, running = queued(site), of_steps(site)
    known: dict[tuple[str, str], set[int]] = {}
    for job in (*jobs, *running):
        known.setdefault((job.id, job.run), set()).update(indices([job]))
    running = [step if step.directory else replace(step, directory=_recorded(past, step)) for step in running]
    found = [*jobs, *running, *(job for job in past.values() if not _is_among(known, job))]
    return sorted(found, key=lambda job: job.submitted)


def _is_among(known: Mapping[tuple[str, str], set[int]], job: Job) -> bool:
    """Whether these have the job; of an array, all of these tasks, as each leaves the queue by itself."""
    tasks = known.get((job.id, job.run))
    return tasks is not None and tasks.issuperset(indices([job]))


def _recorded(past: Mapping[tuple[str, str, str], Job], step: Job) -> str:
    """The directory of a running step, as sacct has it."""
    found = past.get((step.id, "", step.run))
    return found.directory if found else ""


def indices(jobs: Sequence[Job]) -> list[int]:
    """Of the tasks of an array, as far as Slurm's text is complete."""
    found: set[int] = set()
    for job in jobs:
        with suppress(LaunchError):
            found.update(words.indices(job.tasks) if job.tasks else ())
    return sorted(found)


def hosts(job: Job, topology: str = "") -> list[str]:
    """By node rank; none before the job starts, or of an array."""
    if job.tasks or any(nodelist in ("", "(null)", "None assigned") for nodelist in job.groups or (job.nodelist,)):
        return []
    try:
        return [host for hosts in job.groups or (job.nodelist,) for host in order(expand(hosts), topology)]
    except SlurmError:
        return []


def specs(site: Site, directories: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The agents' requests in those of these directories that are readable: another user may have written anything."""
    found: dict[str, Mapping[str, Any]] = {}
    for path, data in site.read([f"{directory}/spec.json" for directory in directories if directory]).items():
        with suppress(ValueError, RecursionError):
            spec = numbers.loads(data)
            if isinstance(spec, dict):
                found[path.removesuffix("/spec.json")] = spec
    return found


def command(spec: Mapping[str, Any]) -> list[str]:
    """The command in such a request; empty if there is none."""
    found = spec.get("command")
    return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else []


def _run(jobs: list[Job], topology: str, specs: Mapping[str, Mapping[str, Any]]) -> ClusterRun:
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
        "command": command(specs.get(first.directory, {})),
    }


def _state(job: Job) -> State:
    """The job's state in our terms."""
    known = states.meaning(job.state)
    if known != "ended":
        return known
    if job.allocation and job.directory:  # Slurm only knows the exit code of its srun
        recorded = storage.read_json(Path(job.directory, "result.json")) or {}
        if recorded.get("state") in ENDS:
            return cast("State", recorded["state"])
    if job.state == "COMPLETED":
        return "success"
    kind = Failure.named((states.ending(job.id, job.state, "") or {}).get("class"))
    return kind if kind in ENDS else "failed"


def _directory(file: str) -> str:
    """The run's directory, by its job file."""
    directory, _, name = file.rpartition("/")
    return directory if name == "job.sbatch" else ""


def _topology(site: Site) -> str:
    try:
        done, _ = control.ask(site, "scontrol", "show", "topology")
    except LaunchError:
        return ""
    return done.stdout if done.returncode == 0 else ""
