"""Checkpoints of runs with small models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.checkpoint import Checkpoints, Progress
    from trainer.world import World


def progress(**counts: int) -> Progress:
    from trainer.checkpoint import Progress

    return Progress(**counts)


def one() -> Progress:
    return progress(epoch=1, epoch_samples=0, step=12, samples=1438)


def two() -> Progress:
    return progress(epoch=2, epoch_samples=128, step=25, samples=3004)


def of(world: World, out: Path | None, model: Any, *argv: str, **parts: Any) -> Checkpoints:
    """The checkpoints of a run."""
    from trainer.checkpoint import Checkpoints
    from trainer.flags import parse

    where = () if out is None else ("--out", str(out))
    return Checkpoints(parse([*where, *argv], 1), world, {"model": model, **parts})


def checkpoints(world: World, out: Path, *argv: str, weight: float = 0.0) -> Checkpoints:
    """The checkpoints of a model with a single number in it."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    return of(world, out, model, *argv, optimizer=torch.optim.SGD(model.parameters(), momentum=0.9))


def weight(run: Checkpoints) -> float:
    return float(next(run.parts["model"].parameters()).item())


def read(path: Path | None) -> dict[str, Any]:
    import torch

    assert path is not None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
