"""The contents of a Slurm run's directory before it starts."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from launcher.backends._base import Written
from launcher.backends._writing import write_beside, write_files
from launcher.errors import StorageError
from launcher.payload import agent_archive, scripts
from launcher.system import storage
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends.slurm.plan import SlurmPlan
    from launcher.backends.slurm.site import Site
    from launcher.payload.snapshot import Snapshot

_SNAPSHOT_BYTES = 1 << 30


def texts(plan: SlurmPlan, text: str, job: Job) -> dict[str, str]:
    """The texts that the user can read and sign."""
    return {"step.sh" if plan.within else "job.sbatch": text, "spec.json": json.dumps(job.to_json(), indent=2) + "\n"}


def fill(plan: SlurmPlan, directory: Path, found: Mapping[str, str]) -> Written:
    """Write these texts, and everything they need, to the directory."""
    more = {"agent.pyz": agent_archive.packed(), **(scripts.contents() if plan.bundled else {})}
    write_files(directory, {name: text.encode(errors="surrogateescape") for name, text in found.items()} | more)
    beside = write_beside(directory, plan.job)
    make_tasks(plan, directory)
    if plan.placed.snapshot:
        _copy(plan, plan.placed.snapshot, directory)
    directories = (
        *(f"tasks/{task}/" for task in plan.tasks),
        *([f"{plan.placed.folder}/"] if plan.placed.snapshot else []),
    )
    return Written(found, (*more, *beside, *directories))


def make_tasks(plan: SlurmPlan, directory: Path) -> None:
    """Make the directories of an array's tasks."""
    with storage.storage_errors(directory):
        for task in plan.tasks:
            (directory / "tasks" / str(task)).mkdir(parents=True, exist_ok=True)


def _copy(plan: SlurmPlan, snapshot: Snapshot, directory: Path) -> None:
    copy = directory / plan.placed.folder
    if copy.exists():
        raise StorageError(f"{copy} exists already", hint="name a new directory")
    own = os.path.relpath(directory.resolve(), snapshot.directory) + "/"
    files = tuple(file for file in snapshot.files if not file.path.startswith(own))
    replace(snapshot, files=files).copy_to(copy)
    here = os.path.relpath(plan.job.cwd, plan.directory / plan.placed.folder)
    (copy / here).mkdir(parents=True, exist_ok=True)  # the snapshot lacks a directory without files


def default_python(site: Site, module: str) -> str:
    """Our own interpreter if it has the framework, as on a file system that all nodes share; else their python3."""
    if site.login:
        return "python3"
    from importlib.util import find_spec

    return os.path.abspath(sys.executable) if find_spec(module) is not None else "python3"
