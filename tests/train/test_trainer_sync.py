"""Every way of synchronising makes DDP's steps: all train in one process tree, from one start, on the same batches."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.held import origin, records

if TYPE_CHECKING:
    import torch

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch

DRIVER = """
import sys; sys.path.insert(0, {scripts!r})
import torch, train
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel
from trainer.world import process_group
runs = {runs!r}
with process_group() as world:
    for name, flags in runs.items():
        sys.argv = ["train.py", "--epochs", "2", *flags]
        trainer = train.Trainer(world)
        sizes = set()
        note = lambda net, args, out: sizes.add(len(args[0])) if net.training else None
        hook = trainer.net.register_forward_hook(note)
        parts = any(hasattr(parameter, "full_tensor") for parameter in trainer.net.parameters())
        about = {{"ddp": isinstance(trainer.network.forward, DistributedDataParallel), "parts": parts}}
        assert trainer.train() == 0
        hook.remove()
        state = trainer.net.state_dict()
        weights = {{key: getattr(value, "full_tensor", lambda: value)() for key, value in state.items()}}
        if world.rank == 0:
            saved = {{"weights": weights, "largest": max(sizes, default=0), **about}}
            torch.save(saved, Path({out!r}) / (name + ".pt"))
        del trainer, hook, state
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
_TORCH = find_spec("torch")
assert _TORCH
assert _TORCH.origin
HAS_FSDP = "def record_event" in Path(_TORCH.origin).with_name("cpu").joinpath("__init__.py").read_text("utf-8")
"""Whether the installed torch, which is not imported here, has it on CPUs."""

if not HAS_FSDP:
    del SAME["fsdp"]
OTHERS = {
    "async": ["--sync", "async-parameter-server", "--epochs", "8", "--batch-size", "32"],
    "bf16 hook": ["--comm-hook", "bf16"],
    "powersgd": ["--comm-hook", "powersgd"],
    "clipped, averaged": [
        "--clip-norm",
        "0.5",
        "--ema-decay",
        "0.9",
        "--optimizer",
        "sgd",
        "--lr",
        "0.1",
        "--schedule",
        "step",
    ],
}


@pytest.fixture(scope="module")
def trained(ranks: Together, scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory with the weights that each way ended with, and what the runs printed."""
    out = tmp_path_factory.mktemp("weights")
    driver = out / "driver.py"
    driver.write_text(DRIVER.format(scripts=str(scripts), runs={**SAME, **OTHERS}, out=str(out)))
    done = ranks(2, driver)
    assert done.codes == [0, 0], done.stderr
    return out, done.stdout


def saved(out: Path, name: str) -> dict[str, Any]:
    import torch

    loaded: dict[str, Any] = torch.load(out / f"{name}.pt", weights_only=True)
    return loaded


def weights(out: Path, name: str) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = saved(out, name)["weights"]
    return loaded


@pytest.mark.parametrize("name", [name for name in SAME if name != "ddp"])
def test_other_ways_to_make_the_same_steps_end_with_ddps_weights(trained: tuple[Path, str], name: str) -> None:
    import torch

    ours, ddp = weights(trained[0], name), weights(trained[0], "ddp")

    assert ours.keys() == ddp.keys()
    for key, expected in ddp.items():
        torch.testing.assert_close(ours[key], expected, rtol=2e-3, atol=2e-4)


def test_each_way_is_what_its_name_says(trained: tuple[Path, str]) -> None:
    about = {name: saved(trained[0], name) for name in (*SAME, *OTHERS)}

    by_ddp = {name for name, one in about.items() if one["ddp"]}
    assert by_ddp == {name for name, flags in {**SAME, **OTHERS}.items() if "--sync" not in flags}
    assert {name for name, one in about.items() if one["parts"]} == {"fsdp"} & {*SAME}
    assert (about["accumulated"]["largest"], about["ddp"]["largest"]) == (16, 64)


def test_one_process_with_two_devices_ends_with_ddps_weights(
    trained: tuple[Path, str], alone: Alone, scripts: Path, tmp_path: Path
) -> None:
    import torch

    driver = tmp_path / "driver.py"
    runs = {"data-parallel": ["--sync", "data-parallel", "--replicas", "2"]}
    driver.write_text(DRIVER.format(scripts=str(scripts), runs=runs, out=str(tmp_path)))

    run = alone(driver)

    assert run.returncode == 0, run.stderr
    ours, ddp = weights(tmp_path, "data-parallel"), weights(trained[0], "ddp")
    for key, expected in ddp.items():
        torch.testing.assert_close(ours[key], expected, rtol=2e-3, atol=2e-4)


def test_ways_that_make_other_steps_learn_too(trained: tuple[Path, str]) -> None:
    ends = [float(line.split()[2].rstrip("%")) for line in trained[1].splitlines() if line.startswith("test accuracy")]

    learnt = dict(zip([*SAME, *OTHERS], ends, strict=True))
    assert all(learnt[name] > 80 for name in OTHERS), learnt
    ddp = weights(trained[0], "ddp")
    for name in OTHERS:
        ours = weights(trained[0], name)
        assert max(float((ours[key] - ddp[key]).abs().max()) for key in ddp) > 2e-3, f"{name} is no different from ddp"


def test_a_server_of_parameters_takes_a_model_with_frozen_ones(ranks: Together, tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    frozen = nn.Linear(64, 64).requires_grad_(False)\n"
        "    return nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), nn.Linear(64, num_classes))\n"
    )
    flags = ("--model", "drawn:net", "--image-shape", "1x8x8", "--epochs", "4", "--lr", "0.01")

    done = ranks(2, "train.py", *flags, "--sync", "async-parameter-server", env={"PYTHONPATH": str(tmp_path)})

    assert done.codes == [0, 0], done.stderr
    (end,) = (line for line in done.stdout.splitlines() if line.startswith("test accuracy"))
    assert float(end.split()[2].rstrip("%")) > 80


def test_data_parallel_is_one_process(ranks: Together) -> None:
    done = ranks(2, "train.py", "--sync", "data-parallel", watched=False)

    assert done.codes == [2, 2]
    assert "--sync data-parallel is one process with many devices; started were 2 ranks" in done.errs[0]


@pytest.mark.skipif(not HAS_FSDP, reason="--sync fsdp on a CPU needs a newer torch")
def test_fsdp_shards_a_model_for_photographs_and_refuses_the_order_that_it_cannot_shard(ranks: Together) -> None:
    flags = (
        "--data",
        "synthetic",
        "--samples",
        "16",
        "--image-shape",
        "3x32x32",
        "--model",
        "resnet18",
        "--batch-size",
        "4",
    )

    done = ranks(2, "train.py", *flags, "--optimizer", "sgd", "--sync", "fsdp")
    refused = ranks(2, "train.py", *flags, "--sync", "fsdp", "--channels-last", "on", watched=False)

    assert done.codes == [0, 0], done.stderr
    assert "test accuracy" in done.stdout
    assert refused.codes == [2, 2]
    assert "--sync fsdp cannot shard weights that lie channels-last" in refused.stderr


@pytest.mark.skipif(not HAS_FSDP, reason="--sync fsdp on a CPU needs a newer torch")
def test_fsdp_resumes_with_the_running_means_of_rank_0(ranks: Together, tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    layers = [layer for _ in range(4) for layer in (nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1))]\n"
        "    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    flags = ("--sync", "fsdp", "--model", "drawn:net", "--image-shape", "1x8x8", "--epochs", "1", "--report", "none")
    env, whole = {"PYTHONPATH": str(tmp_path)}, tmp_path / "whole"
    done = ranks(2, "train.py", *flags, "--out", str(whole), "--checkpoint-steps", "10", "--keep", "9", env=env)
    assert done.codes == [0, 0], done.stderr

    argv = (*flags, "--out", str(tmp_path / "out"), "--resume", str(whole / "checkpoint-00000010"))
    resumed = ranks(2, "train.py", *argv, env=env)

    assert resumed.codes == [0, 0], resumed.stderr
    assert origin(resumed).startswith("resumed from ")
    (expected,), (found,) = (
        [one for one in records(path) if one["event"] == "test"] for path in (whole, tmp_path / "out")
    )
    assert found["loss"] == expected["loss"]


@pytest.mark.skipif(not HAS_FSDP, reason="--sync fsdp on a CPU needs a newer torch")
def test_fsdp_goes_on_with_its_own_weights_after_the_average_was_tested(ranks: Together, tmp_path: Path) -> None:
    """Also with those of the model itself, such as the class token of a vision transformer."""
    (tmp_path / "drawn.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, classes))\n"
        "        self.token = nn.Parameter(torch.ones(64))\n"
        "    def forward(self, images):\n"
        "        return super().forward(images.flatten(1) * self.token)\n"
        "def net(num_classes):\n    return Net(num_classes)\n"
    )
    flags = "--model drawn:net --image-shape 1x8x8 --epochs 3 --ema-decay 0.99 --optimizer sgd --lr 0.1 --log-every 1"
    losses = []
    for sync in ("ddp", "fsdp"):
        argv = (*flags.split(), "--sync", sync, "--metrics", str(tmp_path / sync / "metrics.jsonl"))
        done = ranks(2, "train.py", *argv, env={"PYTHONPATH": str(tmp_path)})
        assert done.codes == [0, 0], done.stderr
        losses.append([one["loss"] for one in records(tmp_path / sync) if one["event"] == "train"])

    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_an_older_torch_refuses_fsdp_in_one_sentence(ranks: Together, scripts: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys; sys.path.insert(0, {str(scripts)!r})\n"
        "import torch\nfrom torch.torch_version import TorchVersion\n"
        "torch.__version__ = TorchVersion('2.4.1')\nimport train\nsys.exit(train.main())\n"
    )

    done = ranks(2, driver, "--epochs", "1", "--sync", "fsdp", watched=False)

    assert set(done.codes) == {2}
    assert "--sync fsdp on cpu needs a newer torch; this is 2.4.1" in done.stderr


REPLICAS = """
import sys; sys.path.insert(0, {scripts!r})
import torch
from torch import nn
from trainer.replicas import Replicas
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
replicas = Replicas(net, [torch.device("cpu")] * 4)
assert len(list(replicas.parameters())) == len(list(net.parameters()))
for step in range(1, 31):
    mean, images = net[1].running_mean.clone(), torch.randn(32, 3, 16, 16)
    replicas(images).sum().backward()
    with torch.no_grad():
        own = net[0](images[:8]).mean((0, 2, 3))
    assert int(net[1].num_batches_tracked) == step, "the first replica's are the model's"
    assert torch.allclose(net[1].running_mean, 0.9 * mean + 0.1 * own, atol=1e-5)
"""


def test_replicas_at_once_do_not_take_each_others_tensors(scripts: Path) -> None:
    code = REPLICAS.format(scripts=str(scripts))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
