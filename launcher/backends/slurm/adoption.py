"""A run that another user, or the same one with another `runs_dir`, has started: found by its job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.backends.slurm import behind_login, clusters, jobs
from launcher.errors import RequestError, RunNotFoundError
from launcher.runs import directories, records
from launcher.spec import NodeRange
from launcher.system import amounts, numbers, storage, trust
from launcher.system.dataclass import asdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.job import Job
    from launcher.backends.slurm.options import SlurmOptions
    from launcher.backends.slurm.site import Site

_NUMBER = re.compile(r"(?:slurm:)?(\d+)(?:\+\d+)?(?:_(\d+))?(\.\d+)?")
_MANY = 100_000


def adopt(site: Site, text: str, runs_root: Path, options: SlurmOptions) -> records.Run:
    """Add the run with that job id, id, or start of an id. `ID/3` and `4711_3` are tasks, `4711.0` is a step.

    Our own run is added as a link to its directory. Another user's gets a directory here, for its outcome.
    """
    number = _NUMBER.fullmatch(text)
    name, _, index = text.partition("/")
    if number:
        step = bool(number[3])
        name, index = (text.removeprefix("slurm:"), "") if step else (number[1], number[2] or "")
    found = _find(site, name, by_number=number is not None)
    path = runs_root / found[0].run
    if os.path.lexists(path):
        raise RequestError(f"{path.name} is already known here", hint=f"distlaunch status {path.name}")
    directory = found[0].directory
    if directory and not site.login and _is_ours(Path(directory), path.name):
        directories.link(runs_root, Path(directory))
    else:
        _record(site, path, found, options)
    return directories.find(runs_root, f"{path.name}/{index}" if index else path.name)


def _find(site: Site, text: str, *, by_number: bool) -> list[Job]:
    """The last job of the run, with all tasks that are known of an array."""
    known = jobs.everything(site)
    if by_number:
        found = _by_number(known, text) or _by_number(jobs.accounted(site, f"--jobs={text.partition('.')[0]}"), text)
    else:
        found = [job for job in known if job.run.startswith(text)]
    names = sorted({job.run for job in found})
    if len(names) != 1:
        if by_number and names:
            steps = amounts.listed(f"{job.id} ({job.run})" for job in reversed(found))
            raise RunNotFoundError(f"job {text} is an allocation with {len(names)} runs", hint=f"its steps: {steps}")
        what = f"{text!r} matches {len(names)} runs" if names else f"no {'job' if by_number else 'run'} {text!r}"
        latest = ", ".join(names[-5:] or [*dict.fromkeys(job.run for job in known)][-5:])
        raise RunNotFoundError(f"{what} of distlaunch on Slurm", hint=f"there are: {latest}" if latest else None)
    last = max(found, key=lambda job: (job.submitted, len(job.id), job.id))
    return [job for job in found if job.id == last.id]


def _by_number(known: list[Job], number: str) -> list[Job]:
    """The job or step with that id, or the steps of that allocation."""
    return [job for job in known if job.id == number] or [job for job in known if job.allocation == number]


def _is_ours(directory: Path, run: str) -> bool:
    """Whether it is a run's directory that only we can change: its run.json names programs that are executed."""
    if directory.name != run or not os.access(directory / "run.json", os.W_OK) or trust.found(directory / "run.json"):
        return False
    read = directories.read(directory.parent, run)
    return not read.damaged and read.handle is not None


def _record(site: Site, path: Path, found: list[Job], options: SlurmOptions) -> None:
    """Create the directory of another user's run, of which only what is harmless is taken over."""
    job = found[0]
    spec = jobs.specs(site, [job.directory]).get(job.directory, {})
    nodes = _number(spec, "max_nodes", int(job.nodes) if job.nodes.isdigit() else 1)
    least = min(nodes, _number(spec, "min_nodes", nodes))
    grace, tasks = spec.get("grace_s"), jobs.indices(found)
    plan: dict[str, Any] = {
        "nodes": _rows(nodes, jobs.hosts(job), roles_of(spec)),
        "min_nodes": least,
        "has_queue": True,
        "may_start_again": not job.allocation,
        **({"grace_s": grace} if isinstance(grace, (int, float)) and numbers.is_time(grace) else {}),
        **({"tasks": tasks} if tasks else {}),
    }
    handle: SlurmHandle = {"run_dir": str(path) if site.login else job.directory or str(path), "nodes": nodes}
    ours = site.login is not None and job.user == site.user
    if not site.has_shell and ours:
        behind_login.place(site, handle, site.directory(path))
    elif site.login and job.directory and (spec or ours):
        handle.update({"remote": job.directory, "output_dir": str(spec.get("output_dir") or job.directory)})
    if not ours:
        handle["user"] = job.user
        if "remote" not in handle:
            there = f"{site.login.name}:{job.directory}" if site.login else job.directory
            handle["elsewhere"] = there if job.directory else ""
    if job.allocation:
        handle.update({"job_id": job.allocation, "step": job.run, "step_id": job.id})
    else:
        handle.update({"job_id": job.id, "comment": f"distlaunch:{job.run}", "name": job.name})
    cwd = spec.get("cwd")
    run = records.Run(
        id=path.name, path=path, created=job.submitted or directories.created(path.name), backend="slurm",
        options=asdict(options), cluster=(site.login.cluster if site.login else "") or None,
        command=tuple(jobs.command(spec)), cwd=cwd if isinstance(cwd, str) else "",
        nodes=str(NodeRange(min=least, max=nodes)), plan=plan,
        handle=handle if job.allocation else clusters.placed(site, handle),
    )  # fmt: skip
    records.create(run)
    with storage.storage_errors(path):
        for task in tasks:
            (path / "tasks" / str(task)).mkdir(parents=True)


def _rows(nodes: int, hosts: Sequence[str], roles: Sequence[str]) -> list[dict[str, Any]]:
    """The plan's table of as many nodes, as far as it is known."""
    known, named = dict(enumerate(hosts)), dict(enumerate(roles))
    return [
        {"node_rank": rank, "host": known.get(rank, "?"), "workers": None, "role": named.get(rank, "")}
        for rank in range(nodes)
    ]


def roles_of(spec: Mapping[str, Any]) -> list[str]:
    """The role of each node in the request, by its rank; none of a run without roles."""
    given, found = spec.get("roles"), list[str]()
    for role in given if isinstance(given, list) else []:
        if isinstance(role, dict) and len(found) < _MANY:
            found += [str(role.get("name"))] * _number(role, "nodes", 1)
    return found


def _number(spec: Mapping[str, Any], name: str, default: int) -> int:
    """A number of nodes in the request, if it can be one."""
    found = spec.get(name)
    return found if isinstance(found, int) and 1 <= found <= _MANY else default
