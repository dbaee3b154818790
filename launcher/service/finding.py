"""Find a run by what a user knows of it: its id here, its scheduler's id, or its id on a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher import backends
from launcher.errors import RunNotFoundError
from launcher.runs import directories, moves
from launcher.system import amounts

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.records import Run

_JOB = re.compile(r"(?P<backend>[a-z0-9]+):(?P<id>\S+)|(?P<number>\d+(_\d+)?(\.\d+)?)")
"""Texts that are a job's id rather than part of a run's."""


def find(directory: Path, text: str, on: str | None = None) -> Run:
    """The run with this id, or unique part of one, or with this job id: `4711`, `slurm:4711`, `4711_3`, `4711.0`.

    If none is known here, the cluster or backend `on` is asked, and the run is adopted. Raises `RunNotFoundError`.
    """
    found = _find(directory, text, on)
    if moves.pending(found) is not None:
        from launcher.service import move  # few runs need it

        found = move.caught_up(found)
    if found.won is None and found.race is None:
        return found
    from launcher.service import race_left  # few runs need it

    return race_left.caught_up(found)


def _find(directory: Path, text: str, on: str | None) -> Run:
    if (job := _JOB.fullmatch(text)) and (found := _by_job(directory, job)) is not None:
        return found
    try:
        return directories.find(directory, text)
    except RunNotFoundError:
        if on is None:
            raise
        # Imported here: runs that are known here need no settings and no backend.
        from launcher.service import cluster

        return cluster.take(text, directory, on)


def _by_job(directory: Path, job: re.Match[str]) -> Run | None:
    """The newest run that a scheduler knows by this id: schedulers reuse them."""
    full = backends.ALIASES.get(job["backend"], job["backend"])
    asked = job["id"] or job["number"]
    steps: list[Run] = []
    for run in directories.newest_first(directory, directories.ids(directory)):
        if full not in (None, backends.ALIASES.get(run.backend, run.backend)):
            continue
        for each in (run, *map(run.task, run.tasks)):
            if each.job_id == asked:
                return directories.find(directory, each.id)
        steps += [run] * (run.allocation == asked)
    if len(steps) > 1:
        hint = amounts.listed(f"{run.job_id or 'waiting'} ({run.id})" for run in steps)
        raise RunNotFoundError(f"job {asked} is an allocation with {len(steps)} runs", hint=f"its steps: {hint}")
    return directories.find(directory, steps[0].id) if steps else None
