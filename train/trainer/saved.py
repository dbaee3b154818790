"""Checkpoints as files: which there are, reading one, and writing one whole."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = "run.pt"
"""Of a sharded checkpoint, the part that is no shard."""
LAST = ".metadata"
"""Of a sharded checkpoint, the file that is written last."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read."""

    path: str
    progress: dict[str, int]
    random: list[Any]
    """Of each rank, what its random number generators were at."""

    config: dict[str, Any]
    """The settings of the run that saved it."""

    tensors: dict[str, Any]
    """State of model, optimizer and so on; empty if `sharded`: those are read by all ranks together."""

    sharded: bool = False


def newest_first(directory: Path) -> list[Path]:
    """The complete checkpoints in `directory`."""
    whole = [path for path in directory.glob("checkpoint-*") if path.suffix == ".pt" or (path / LAST).exists()]
    return sorted(whole, key=lambda path: path.stem, reverse=True)


def read(path: Path) -> Saved:
    """The checkpoint at `path`; raises `InputError` when there is none, or it is damaged."""
    sharded = path.is_dir()
    try:
        if sharded and not (path / LAST).exists():
            raise InputError(f"--resume {path}: not a whole checkpoint")
        state = torch.load(path / ABOUT if sharded else path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(f"--resume {path}: {error.strerror}") from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"--resume {path}: not a whole checkpoint") from error
    about = {"progress", "random", "config"}
    if not isinstance(state, dict) or not about <= state.keys():
        raise InputError(f"--resume {path}: not a checkpoint of train.py")
    tensors = {name: value for name, value in state.items() if name not in about}
    return Saved(str(path), state["progress"], state["random"], state["config"], tensors, sharded)


def write_whole(state: dict[str, Any], path: Path) -> None:
    """The file appears under its name complete and on disk, or not at all; raises `OSError` or `RuntimeError`."""
    part = path.with_name(path.name + ".part")
    try:
        torch.save(state, str(part))  # by name: C++ writes then, and the training keeps the interpreter
        sync_to_disk(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)  # the new name, too


def sync_to_disk(path: Path) -> None:
    """fsync a file or a directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove(path: Path) -> None:
    """A checkpoint of either kind, or nothing. The last file goes first: half a checkpoint is none."""
    if path.is_dir():
        (path / LAST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
