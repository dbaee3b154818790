"""The folder of `--render-to`: whether it may be filled."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from launcher import input_file, runs, storage
from launcher.errors import SpecError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

_HEAD_BYTES = 200


def check(folder: Path, marks: tuple[str, ...]) -> None:
    """Raise `SpecError` unless the folder is empty, or was filled for the same backend before: what is not ours stays.

    `marks` are texts that each such folder has; the first one names the run.
    """
    try:
        there = sorted(os.listdir(folder))
    except OSError as error:
        raise StorageError(f"cannot read {str(folder)!r}: {error.strerror}") from error
    if not there or (all(os.path.lexists(folder / name) for name in marks) and runs.is_id(_run_in(folder / marks[0]))):
        return
    some = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")
    raise SpecError(
        f"--render-to {str(folder)!r} holds other files: {some}", hint="name a new folder, or one of the same kind of run"
    )


def _run_in(path: Path) -> str:
    """The run that a rendered request is for; empty where it is none."""
    if path.suffix == ".json":
        return str((storage.read_json(path) or {}).get("run"))
    try:
        fd = input_file.open_fd(path)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        found = re.match(r"# Run (\S+): ", file.read(_HEAD_BYTES).decode(errors="replace"))
    return found[1] if found else ""
