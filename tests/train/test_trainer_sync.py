"""Every way of synchronising makes DDP's steps: they train in one process tree, from the same start, on the same batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = """
import sys; sys.path.insert(0, {scripts!r})
import torch, train
from pathlib import Path
from trainer.world import process_group
runs = {runs!r}
with process_group() as world:
    for name, flags in runs.items():
        sys.argv = ["train.py", "--epochs", "2", *flags]
        trainer = train.Trainer(world)
        assert trainer.train() == 0
        weights = {{key: getattr(value, "full_tensor", lambda: value)() for key, value in trainer.net.state_dict().items()}}
        if world.rank == 0:
            torch.save(weights, Path({out!r}) / (name + ".pt"))
        del trainer
"""
SAME = {
    "ddp": [],
    "average-gradients": ["--sync", "average-gradients"],
    "reduce-broadcast": ["--sync", "reduce-broadcast"],
    "parameter-server": ["--sync", "parameter-server"],
    "fsdp": ["--sync", "fsdp"],
    "accumulated": ["--accumulate", "4"],
    "sent by rank 0": ["--init", "broadcast"],
}
OTHERS = {
    "async": ["--sync", "async-parameter-server", "--epochs", "8", "--batch-size", "32"],
    "bf16 hook": ["--comm-hook", "bf16"],
    "powersgd": ["--comm-hook", "powersgd"],
    "clipped, averaged": ["--clip-norm", "0.5", "--ema-decay", "0.9", "--optimizer", "sgd", "--lr", "0.1", "--schedule", "step"],
}


@pytest.fixture(scope="module")
def trained(torchrun: Any, scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the weights that each way ended with, and what the runs said."""
    out = tmp_path_factory.mktemp("weights")
    driver = out / "driver.py"
    driver.write_text(DRIVER.format(scripts=str(scripts), runs={**SAME, **OTHERS}, out=str(out)))
    run = torchrun(2, driver)
    assert run.returncode == 0, run.stderr
    return out, run.stdout


def weights(out: Path, name: str) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(out / f"{name}.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("name", [name for name in SAME if name != "ddp"])
def test_it_ends_with_ddps_weights(trained: tuple[Path, str], name: str) -> None:
    ours, ddp = weights(trained[0], name), weights(trained[0], "ddp")

    assert ours.keys() == ddp.keys()
    for key, expected in ddp.items():
        torch.testing.assert_close(ours[key], expected, rtol=2e-3, atol=2e-4)


def test_one_process_with_two_devices_ends_with_ddps_weights(
    trained: tuple[Path, str], alone: Any, scripts: Path, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.py"
    runs = {"data-parallel": ["--sync", "data-parallel", "--replicas", "2"]}
    driver.write_text(DRIVER.format(scripts=str(scripts), runs=runs, out=str(tmp_path)))

    run = alone(driver)

    assert run.returncode == 0, run.stderr
    ours, ddp = weights(tmp_path, "data-parallel"), weights(trained[0], "ddp")
    for key, expected in ddp.items():
        torch.testing.assert_close(ours[key], expected, rtol=2e-3, atol=2e-4)


def test_what_is_not_the_same_learns(trained: tuple[Path, str]) -> None:
    ends = [float(line.split()[2].rstrip("%")) for line in trained[1].splitlines() if line.startswith("test accuracy")]

    learnt = dict(zip([*SAME, *OTHERS], ends, strict=True))
    assert all(learnt[name] > 80 for name in OTHERS), learnt


def test_data_parallel_is_one_process(two_ranks: Any) -> None:
    with two_ranks("train.py", "--sync", "data-parallel") as processes:
        outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "--sync data-parallel is one process with many devices; started were 2 ranks" in outputs[0][1]


def test_fsdp_shards_a_model_for_photographs_and_refuses_the_order_that_it_cannot_shard(torchrun: Any, scripts: Path) -> None:
    flags = ("--data", "synthetic", "--samples", "32", "--image-shape", "3x32x32", "--model", "resnet18", "--batch-size", "4")
    sgd = (*flags, "--optimizer", "sgd")

    run = torchrun(2, scripts / "train.py", *sgd, "--sync", "fsdp")
    refused = torchrun(2, scripts / "train.py", *flags, "--sync", "fsdp", "--channels-last", "on")

    assert run.returncode == 0, run.stderr
    assert "test accuracy" in run.stdout
    assert refused.returncode != 0
    assert "--sync fsdp cannot shard weights that lie channels-last" in refused.stderr
