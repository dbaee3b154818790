"""What is in the folder of a Slurm run before it starts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import bundle, output, storage
from launcher.backends._base import write_files
from launcher.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends.slurm import SlurmPlan

_SNAPSHOT_BYTES = 1 << 30


def texts(plan: SlurmPlan, text: str, job: dict[str, Any]) -> dict[str, str]:
    """What a person may read and sign."""
    return {"step.sh" if plan.within else "job.sbatch": text, "spec.json": json.dumps(job, indent=2) + "\n"}


def in_run(path: str, folder: Path, copied: Path | None) -> str:
    """Where a path of a bundled script, or of what is copied, is found in the run's folder."""
    for old, new in ((bundle.data("train"), folder / "payload"), (copied, folder / "snapshot")):
        if old and os.path.isabs(path) and Path(path).is_relative_to(old):
            return str(new / os.path.relpath(path, old))
    return path


def fill(plan: SlurmPlan, folder: Path, found: Mapping[str, str]) -> None:
    """Write these texts into that folder, and all that they need."""
    write_files(folder, {name: text.encode(errors="surrogateescape") for name, text in found.items()})
    with storage.storage_errors(folder):
        (folder / "agent.pyz").write_bytes(bundle.agent_archive())
        if plan.bundled:
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(bundle.data("train"), folder / "payload", ignore=unwanted, dirs_exist_ok=True)
        for task in plan.tasks:
            (folder / "tasks" / str(task)).mkdir(parents=True, exist_ok=True)
    if plan.copied:
        _copy(plan, plan.copied, folder)


def _copy(plan: SlurmPlan, source: Path, folder: Path) -> None:
    """The user's files as they are now."""
    from launcher import snapshot

    copy, planned = folder / "snapshot", plan.run_dir / "snapshot"
    if copy.exists():
        raise StorageError(f"{copy} exists already", hint="name a new folder")
    script = os.path.relpath(os.path.join(plan.job["cwd"], plan.job["command"][0]), planned)
    leave_out = [plan.run_dir.parent, folder.absolute()]
    found = snapshot.collect(source, limit_bytes=_SNAPSHOT_BYTES, also=[script], leave_out=leave_out, keep_outside_links=True)
    for warning in found.warnings:
        output.warn(warning)
    found.copy_to(copy)
    (copy / os.path.relpath(plan.job["cwd"], planned)).mkdir(parents=True, exist_ok=True)  # a folder without files of its own
