"""A run that resumes with other settings, or other data, than the checkpoint's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.train.checkpoints import of, one, progress
from tests.train.held import origin

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.checkpoint import Checkpoints
    from trainer.optim import Update
    from trainer.world import World

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch


def made(world: World, out: Path, *argv: str, classes: int = 1, scales: bool = False) -> tuple[Checkpoints, Update]:
    """The checkpoints of a run with all that it updates; its weights are those of `classes`."""
    import torch
    from trainer.flags import parse
    from trainer.optim import Update

    net = torch.nn.Linear(1, classes)
    torch.nn.init.constant_(net.weight, float(classes))
    update = Update(parse(argv, 1), net, net, scales=scales, device=torch.device("cpu"))
    return of(world, out, net, *argv, **update.parts()), update


@pytest.fixture
def out(world: World, tmp_path: Path) -> Path:
    """A directory with a checkpoint after one step, of sgd on a weight of 5."""
    import torch

    run, update = made(world, tmp_path, "--optimizer", "sgd")
    torch.nn.init.constant_(run.parts["model"].weight, 5.0)
    run.parts["model"](torch.ones(1, 1)).sum().backward()
    update.step()
    torch.nn.init.constant_(run.parts["model"].weight, 5.0)
    run.save(one())
    run.finish()
    return tmp_path


def test_a_new_average_begins_with_the_loaded_weights(world: World, out: Path) -> None:
    run, update = made(world, out, "--optimizer", "sgd", "--ema-decay", "0.9")

    run.restore()

    assert update.average is not None
    assert update.average.shadow["weight"].item() == 5.0


def test_the_optimizers_settings_are_those_of_this_run(world: World, out: Path) -> None:
    run, update = made(world, out, "--optimizer", "sgd", "--weight-decay", "0.5", "--momentum", "0.3")

    run.restore()

    groups = update.optimizer.param_groups
    assert [(group["weight_decay"], group["momentum"]) for group in groups] == [(0.5, 0.3), (0.0, 0.3)]
    assert len(update.optimizer.state) == 2
    assert all(state["momentum_buffer"].item() >= 1.0 for state in update.optimizer.state.values())


def test_losses_are_scaled_though_the_checkpoint_has_no_scale(world: World, out: Path) -> None:
    run, update = made(world, out, "--optimizer", "sgd", scales=True)

    assert run.restore() == one()
    assert update.scaler.get_scale() > 1


@pytest.mark.parametrize(
    ("argv", "classes", "message"),
    [
        (["--optimizer", "adamw"], 1, "has optimizer 'sgd', this run 'adamw'"),
        (["--optimizer", "sgd"], 3, "has weight of shape (1, 1), this run (3, 1): has the number of classes changed"),
    ],
)
def test_what_cannot_be_loaded_is_one_error(
    world: World, out: Path, argv: list[str], classes: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = made(world, out, *argv, classes=classes)

    with pytest.raises(SystemExit) as stopped:
        run.restore()

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_position_beyond_the_epoch_is_the_start_of_the_next() -> None:
    beyond, within = progress(epoch=1, epoch_samples=100), progress(epoch=1, epoch_samples=99)

    beyond.fit(100)
    within.fit(100)

    assert beyond == progress(epoch=2)
    assert within == progress(epoch=1, epoch_samples=99)


def test_a_run_resumes_though_samples_were_removed(alone: Alone, photographs_copy: Path, tmp_path: Path) -> None:
    argv = ["--data", str(photographs_copy), "--model", "small", "--image-shape", "3x16x16", "--batch-size", "8"]
    argv += ["--epochs", "2", "--report", "none", "--checkpoint-steps", "6", "--checkpoint-every", "9", "--keep", "9"]
    first = alone("train.py", *argv, "--out", str(tmp_path / "first"))
    assert first.returncode == 0, first.stderr
    max(photographs_copy.glob("*.tar")).unlink()
    resume = ["--resume", str(tmp_path / "first" / "checkpoint-00000006.pt")]

    again = alone("train.py", *argv, "--out", str(tmp_path / "again"), *resume)

    assert again.returncode == 0, again.stderr
    assert "resumed from " in again.stdout


def test_shards_tell_what_they_hold(ranks: Together, tmp_path: Path) -> None:
    """The weights' shapes, and neither the average nor the scale of losses that a run now wants."""
    import torch
    from trainer.flags import parse
    from trainer.model import build_model
    from trainer.sharded import shapes

    argv = ["--sync", "fsdp", "--data", "synthetic", "--samples", "64", "--image-shape", "1x8x8", "--batch-size", "16"]
    argv += ["--report", "none", "--out", str(tmp_path)]
    assert ranks(2, "train.py", *argv, "--epochs", "1").codes == [0, 0]

    again = ranks(2, "train.py", *argv, "--epochs", "2", "--ema-decay", "0.9", "--precision", "fp16")

    assert again.codes == [0, 0], again.stderr
    assert origin(again).startswith("resumed from ")
    state = build_model(parse(argv, 2), 10, torch.device("cpu")).state_dict()
    assert shapes(str(tmp_path / "checkpoint-00000002")) == {name: tuple(one.shape) for name, one in state.items()}
