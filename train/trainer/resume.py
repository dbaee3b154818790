"""Which checkpoint a run resumes from, and whether it can. Only rank 0 looks."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from trainer import sharded
from trainer.errors import InputError
from trainer.saved import Saved, newest_first, read, remove, set_aside, step_of, this_run, tidy

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Config

SAME = ("data", "model", "image_shape", "classes", "samples", "seed", "split", "optimizer")
"""Settings that must not differ between a checkpoint and the run that resumes from it."""
STARTED_AGAIN = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "DISTLAUNCH_ATTEMPT")
"""Variables that count how often the same run was started before: then it continues from what it has saved."""
MET_AGAIN = ("DISTLAUNCH_ROUND",)
"""The variable that counts how often nodes have met: all start again, though only those that failed count a restart."""


def find(config: Config, model: nn.Module) -> Optional[Saved]:
    """Prepare `--out` and read the checkpoint that `--resume` selects, if there is one; raises `InputError`."""
    candidates = _prepared(config.out) if config.out is not None else []
    named, gone = _named(config.resume)
    begin = int(named.progress["step"]) if named else step_of(Path(config.resume))
    later = [path for path in candidates if step_of(path) > begin]
    again = config.resume == "auto" or _counts(STARTED_AGAIN)
    own = _newest(later) if again or _counts(MET_AGAIN) else None
    again |= _counts(MET_AGAIN) and (own is None or own.run == this_run())  # they may have met before it saved anything
    if config.resume == "never" and not again:
        for old in [*candidates, *((config.out / "best.json",) if config.out else ())]:
            remove(old)
    saved = own if own and again else named
    if gone:
        # A name without a step does not say whether what another run has saved follows FILE.
        if saved is None or (begin < 0 and saved.run != (this_run() or None)):
            raise gone
        sys.stderr.write(f"{gone}; going on from {saved.path}\n")
    if saved:
        _check(saved, config)
        _check_shapes(saved, model)
    if named is not None and saved is named and config.out is not None:
        _leave(later, config.out, named, config.resume)
    return saved


def _named(resume: str) -> tuple[Optional[Saved], Optional[InputError]]:
    """The checkpoint that `--resume FILE` names, or why it cannot be read: a run started again may need it no more."""
    if resume in ("auto", "never"):
        return None, None
    try:
        return read(Path(resume)), None
    except InputError as error:
        return None, error


def _leave(later: list[Path], out: Path, named: Saved, resume: str) -> None:
    """Go back to a checkpoint: set those of later steps aside, and forget the best if it is among them."""
    for path in later:
        sys.stderr.write(f"{path} is of a later step than --resume {resume}: now {set_aside(path).name}\n")
    if step_of(Path(best(out).get("checkpoint", ""))) > int(named.progress["step"]):
        remove(out / "best.json")


def _counts(names: tuple[str, ...]) -> bool:
    return any(int(os.environ.get(name) or 0) > 0 for name in names)


def best(directory: Path) -> dict[str, Any]:
    """The contents of `best.json`; empty if there is none."""
    try:
        found = json.loads((directory / "best.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _prepared(out: Path) -> list[Path]:
    """Make `out`, if it can be written to, and list its checkpoints, newest first; raises `InputError`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        tidy(out)
    except OSError as error:
        raise InputError(f"--out {out}: cannot write there: {error.strerror}") from error
    return newest_first(out)


def _newest(candidates: list[Path]) -> Optional[Saved]:
    """The first that is not damaged."""
    for path in candidates:
        try:
            return read(path)
        except InputError as error:
            sys.stderr.write(f"{error}; going on from the one before it\n")
    return None


def _check(saved: Saved, config: Config) -> None:
    """Raise `InputError` that names the differences, if this run cannot resume from `saved`."""
    then, now = saved.config, config.to_json()
    differing = [f"{name} {then.get(name)!r}, this run {now[name]!r}" for name in SAME if then.get(name) != now[name]]
    if differing:
        raise InputError(
            f"{saved.path} has {'; '.join(differing)}: choose another --out, or --resume never to start anew"
        )
    if saved.sharded != (config.sync == "fsdp"):
        ours, theirs = ("as one file", "in shards") if saved.sharded else ("in shards", "as one file")
        raise InputError(f"{saved.path} was saved {theirs}, --sync {config.sync} saves {ours}: choose another --out")


def _check_shapes(saved: Saved, model: nn.Module) -> None:
    """Raise `InputError` that names the first weight of which `saved` and `model` have another shape."""
    theirs = sharded.shapes(saved.path) if saved.sharded else _shapes(saved.tensors["model"])
    ours = _shapes(model.state_dict())
    for name in (*ours, *theirs):
        if ours.get(name) != theirs.get(name):
            raise InputError(
                f"{saved.path} has {name} of shape {theirs.get(name)}, this run {ours.get(name)}: "
                "has the number of classes changed, or the model? Choose another --out"
            )


def _shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in state.items() if hasattr(one, "shape")}
