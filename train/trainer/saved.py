"""Checkpoint files: list them, read one, write one atomically."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.errors import InputError
from trainer.files import sync_to_disk, whole

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = "run.pt"
"""The file of a sharded checkpoint that is not a shard."""
LAST = ".metadata"
"""The file of a sharded checkpoint that is written last."""


DAMAGE = (OSError, RuntimeError, EOFError, LookupError, ValueError, AttributeError, ImportError, pickle.UnpicklingError)
"""What torch and pickle raise for a damaged file."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has been read."""

    path: str
    progress: dict[str, int]
    random: list[Any]
    """The state of each rank's random number generators."""

    config: dict[str, Any]
    """The settings of the run that saved it."""

    tensors: dict[str, Any]
    """State of model, optimizer and so on; empty if `sharded`, since all ranks read that together."""

    run: str = ""
    """What `this_run` was when it was saved."""

    scored: bool = True
    """Whether the model was evaluated there."""

    sharded: bool = False


def newest_first(directory: Path) -> list[Path]:
    """The complete checkpoints of steps in `directory`, newest first; a user's own copies have other names."""
    whole = [path for path in directory.glob("checkpoint-*") if path.suffix == ".pt" or (path / LAST).exists()]
    return sorted((path for path in whole if step_of(path) >= 0), key=step_of, reverse=True)


def tidy(directory: Path) -> None:
    """Remove what a run that was killed while it wrote a checkpoint has left in `directory`, or complete it."""
    for part in directory.glob("checkpoint-*.part"):
        path = part.with_suffix("")
        if step_of(path) >= 0 and (part / LAST).exists() and not (path / LAST).exists():
            try:
                _name(part, path)
            except OSError as error:
                sys.stderr.write(f"{part} is complete, but cannot be renamed, and is left out: {error}\n")
        else:
            remove(part)
    for path in (about.parent for about in directory.glob(f"checkpoint-*/{ABOUT}")):
        part = path.with_name(path.name + ".part")
        if step_of(path) >= 0 and not (path / LAST).exists() and not (part / LAST).exists():
            remove(path)


def replace(path: Path, part: Path) -> None:
    """Give the complete checkpoint in shards at `part` the name `path`; `tidy` does the rest after a kill."""
    sync_to_disk(part)
    remove(path)
    _name(part, path)
    sync_to_disk(path.parent)


def _name(part: Path, path: Path) -> None:
    """Give the complete checkpoint in shards at `part` the name `path`, at which another one may be in part."""
    try:
        part.rename(path)
    except OSError:  # an object store that is mounted as a file system may rename files alone
        path.mkdir(exist_ok=True)
        for each in sorted(part.iterdir(), key=lambda each: each.name == LAST):
            os.replace(each, path / each.name)
        sync_to_disk(path)
        shutil.rmtree(part, ignore_errors=True)


def step_of(path: Path) -> int:
    """The step of the checkpoint with that name; -1 for another name."""
    number = path.stem.removeprefix("checkpoint-") if path.suffix in ("", ".pt") else ""
    return int(number) if number.isascii() and number.isdigit() else -1


def set_aside(path: Path) -> Path:
    """Give a checkpoint a name under which no run resumes from it, and none removes it; returns it."""
    aside = path.with_name(f"left-{path.name}")
    if aside.exists():
        remove(aside)
    return path.rename(aside)


def read(path: Path) -> Saved:
    """The checkpoint at `path`; raises `InputError` if it is missing or damaged."""
    sharded = path.is_dir()
    try:
        if sharded:
            _check_shards(path)
        state = torch.load(path / ABOUT if sharded else path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(f"--resume {path}: {error.strerror}") from error
    except DAMAGE as error:
        raise InputError(f"--resume {path}: not a whole checkpoint") from error
    about = {"progress", "random", "config"}
    if not isinstance(state, dict) or not about <= state.keys():
        raise InputError(f"--resume {path}: not a checkpoint of train.py")
    run, scored = state.pop("run", ""), state.pop("scored", True)
    tensors = {name: value for name, value in state.items() if name not in about}
    return Saved(str(path), state["progress"], state["random"], state["config"], tensors, run, scored, sharded)


def _check_shards(path: Path) -> None:
    """Raise `InputError` that names a file of the sharded checkpoint at `path` that is missing or cut off."""
    sizes = {LAST: 0}
    for place in layout(path).storage_data.values() if (path / LAST).exists() else ():
        sizes[place.relative_path] = max(sizes.get(place.relative_path, 0), place.offset + place.length)
    for name, size in sizes.items():
        if not (path / name).exists() or (path / name).stat().st_size < size:
            raise InputError(f"--resume {path}: not a whole checkpoint ({name} is missing, or cut off)")


def layout(path: Path) -> Any:
    """What the sharded checkpoint at `path` holds, by name, and where."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(path).read_metadata()


def this_run() -> str:
    """The name that distlaunch has given to this run; empty under another launcher."""
    return os.environ.get("DISTLAUNCH_RUN_ID", "")


def write_whole(state: dict[str, Any], path: Path) -> None:
    """Write a file that appears under its name complete and on disk, or not at all.

    Raises `OSError` or `RuntimeError`.
    """
    with whole(path) as part:
        torch.save(state, str(part))  # by name, so that C++ writes it, and leaves the GIL to the training
        sync_to_disk(part)
    sync_to_disk(path.parent)  # makes the rename durable


def remove(path: Path) -> None:
    """Remove a checkpoint of either kind, if present.

    Of a directory, `LAST` goes first, so that the rest never counts as one. The rest gets a name by which `tidy` knows
    it, if this process is killed meanwhile.
    """
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    (path / LAST).unlink(missing_ok=True)
    rest = path.with_name(f"checkpoint-removed-{path.name.removesuffix('.part')}.part")
    shutil.rmtree(rest, ignore_errors=True)
    with suppress(OSError):
        path = path.rename(rest)
    shutil.rmtree(path, ignore_errors=True)
