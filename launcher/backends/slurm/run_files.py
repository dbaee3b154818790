"""The contents of a Slurm run's directory before it starts."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.backends._base import Written
from launcher.backends._writing import write_beside, write_files
from launcher.errors import StorageError
from launcher.payload import agent_archive, scripts
from launcher.system import install, storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.job import Job
    from launcher.backends.slurm.plan import SlurmPlan
    from launcher.payload.snapshot import Snapshot
    from launcher.spec import JobSpec

_SNAPSHOT_BYTES = 1 << 30


def texts(plan: SlurmPlan, text: str, job: Job) -> dict[str, str]:
    """The texts that the user can read and sign."""
    return {"step.sh" if plan.within else "job.sbatch": text, "spec.json": json.dumps(job.to_json(), indent=2) + "\n"}


def in_run(path: str, directory: Path, copied: Path | None) -> str:
    """The path in the run's directory of a bundled script or a copied file; other paths as they are."""
    for old, new in ((install.data("train"), directory / "payload"), (copied, directory / "snapshot")):
        if old and os.path.isabs(path) and Path(path).is_relative_to(old):
            return str(new / os.path.relpath(path, old))
    return path


def fill(plan: SlurmPlan, directory: Path, found: Mapping[str, str]) -> Written:
    """Write these texts, and everything they need, to the directory."""
    more = {"agent.pyz": agent_archive.packed(), **(scripts.contents() if plan.bundled else {})}
    write_files(directory, {name: text.encode(errors="surrogateescape") for name, text in found.items()} | more)
    beside = write_beside(directory, plan.job)
    with storage.storage_errors(directory):
        for task in plan.tasks:
            (directory / "tasks" / str(task)).mkdir(parents=True, exist_ok=True)
    if plan.snapshot:
        _copy(plan, plan.snapshot, directory)
    directories = (*(f"tasks/{task}/" for task in plan.tasks), *(["snapshot/"] if plan.snapshot else []))
    return Written(found, (*more, *beside, *directories))


def collect(spec: JobSpec, directory: Path, runs_root: Path) -> Snapshot:
    """The user's files as they are now."""
    from launcher.payload import snapshot

    found = snapshot.collect(
        directory,
        limit_bytes=_SNAPSHOT_BYTES,
        also=[os.path.relpath(os.path.join(spec.cwd, spec.command[0]), directory)],
        leave_out=[runs_root],
        links=spec.links,
        same_disk=True,
        ship_secrets=spec.ship_secrets,
    )
    for warning in found.warnings:
        output.warn(warning)
    return found


def _copy(plan: SlurmPlan, snapshot: Snapshot, directory: Path) -> None:
    copy = directory / "snapshot"
    if copy.exists():
        raise StorageError(f"{copy} exists already", hint="name a new directory")
    own = os.path.relpath(directory.resolve(), snapshot.directory) + "/"
    files = tuple(file for file in snapshot.files if not file.path.startswith(own))
    replace(snapshot, files=files).copy_to(copy)
    here = os.path.relpath(plan.job.cwd, plan.run_dir / "snapshot")
    (copy / here).mkdir(parents=True, exist_ok=True)  # the snapshot lacks a directory without files


def default_python() -> str:
    """Our own interpreter if it has torch, as on a file system that all nodes share; else the nodes' python3."""
    from importlib.util import find_spec

    return os.path.abspath(sys.executable) if find_spec("torch") is not None else "python3"
