"""What a checkpoint costs the training, and what resuming in mid-epoch costs.

    python benchmarks/checkpoint.py [--saves 7] [--model resnet50] [--samples 1281167]

Stall: how long a checkpoint keeps a training of ResNet-50 with momentum waiting, in `save` and before the optimizer's
next step until the copy is complete, against torch's dcp.async_save, whose stager is kept as ours is, and against
copying the same tensors in memory.
Also the whole time of a save and the forward and backward pass after it, since the copy uses cores meanwhile.
Resume: from a new loader in the middle of an epoch to its first batch, against the start of an epoch and against
torchdata's StatefulDataLoader over the same images. Our last checkpoint is read back before a ratio counts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import make_shards
import torch
from torch import nn
from trainer.checkpoint import Checkpoints, Progress
from trainer.datasets import load_data
from trainer.datasets.shards import ShardSet, open_shards
from trainer.decode import DRAWS, decode, place
from trainer.flags import parse
from trainer.loader import Batches
from trainer.world import World, process_group

from benchmarks import _free_memory
from benchmarks._measure import ratios, verdict

BATCH, SIDE = 32, 64
TARGETS = {"dcp.async_save": 0.3, "memcpy": 1.5, "StatefulDataLoader": 0.2, "an epoch's beginning": 1.2}


def trained(model: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after one step of SGD with momentum."""
    from torchvision import models

    net: nn.Module = models.get_model(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return net, optimizer


def stalls(
    model: str, saves: int, directory: Path, world: World
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds that each method keeps the training waiting, and those of a save and the pass after it, per save.

    The first of each, which allocates memory, does not count.
    """
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import async_save

    net, optimizer = trained(model)
    parts: dict[str, Any] = {"model": net, "optimizer": optimizer}
    checkpoints = Checkpoints(parse(["--out", str(directory / "ours")], 1), world, parts)
    checkpoints.restore()
    tensors = [
        tensor for part in (net.state_dict(), *optimizer.state_dict()["state"].values()) for tensor in part.values()
    ]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    images = torch.randn(4, 3, SIDE, SIDE)
    net.eval()  # passes keep the running means, so that the saved state can be compared
    stager = DefaultStager(StagingOptions(*[False] * 4))  # as `async_save` makes one for each save
    saving: Any = None

    def ours() -> float:
        checkpoints.save(Progress(step=number))
        net(images).sum().backward()
        checkpoints.copied()
        return checkpoints.stall_s

    def dcp() -> float:
        nonlocal saving
        begin_s = time.perf_counter()
        state, where = {name: part.state_dict() for name, part in parts.items()}, str(directory / f"dcp{number}")
        saving = async_save(state, checkpoint_id=where, async_stager=stager)
        stall_s = time.perf_counter() - begin_s
        net(images).sum().backward()
        return stall_s

    def memcpy() -> float:
        begin_s = time.perf_counter()
        torch._foreach_copy_(copies, tensors)
        stall_s = time.perf_counter() - begin_s
        net(images).sum().backward()
        return stall_s

    ways = {"ours": ours, "dcp.async_save": dcp, "memcpy": memcpy}
    taken, whole = ({name: list[float]() for name in ways} for _ in range(2))
    for number in range(saves + 1):
        for name, way in ways.items():
            begin_s = time.perf_counter()
            stall_s = way()
            if number:
                taken[name].append(stall_s)
                whole[name].append(time.perf_counter() - begin_s)
            path = checkpoints.finish()
            if saving is not None:
                saving.result()
    stager.close()
    assert path is not None
    again = torch.load(path, weights_only=True)["model"]
    if not all(torch.equal(again[name], value) for name, value in net.state_dict().items()):
        raise RuntimeError("our checkpoint is not what was saved")
    return taken, whole


class Images(torch.utils.data.Dataset[Any]):
    """The shards' images, repeated, as a data set for a DataLoader."""

    def __init__(self, shards: ShardSet, samples: int) -> None:
        self.shards, self.samples = shards, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        blob, label = self.shards.read(number % len(self.shards))
        slot = torch.empty(3, SIDE, SIDE, dtype=torch.uint8)
        place(decode(blob, 3), slot, torch.rand(DRAWS).tolist())
        return slot, label


class Repeated:
    """The same for our reader."""

    def __init__(self, shards: ShardSet, samples: int) -> None:
        self.shards, self.samples = shards, samples

    def __len__(self) -> int:
        return self.samples

    def read(self, number: int) -> tuple[bytearray, int]:
        """See `trainer.sources.Files`."""
        return self.shards.read(number % len(self.shards))

    def name(self, number: int) -> str:
        """See `trainer.sources.Files`."""
        return self.shards.name(number % len(self.shards))


def resumes(directory: Path, rounds: int, samples: int, world: World) -> dict[str, list[float]]:
    """Seconds from a new loader to its first batch."""
    shards = open_shards(str(directory / "shards"))
    flags = [
        "--data",
        str(directory / "shards"),
        "--model",
        "resnet18",
        "--image-shape",
        f"3x{SIDE}x{SIDE}",
        "--batch-size",
        str(BATCH),
    ]
    config = parse([*flags, "--workers", "2"], 1)
    data = load_data(config, 1)
    data.train.source.files = Repeated(shards, samples)  # type: ignore[attr-defined]
    data.train.count = samples - data.train.first  # type: ignore[attr-defined]
    middle = len(data.train) // 2 // BATCH * BATCH

    def first(start: int) -> float:
        begin_s = time.perf_counter()
        batches = Batches(data, config, world)
        next(batches.train(0, start))
        took_s = time.perf_counter() - begin_s
        batches.close()
        return took_s

    taken: dict[str, list[float]] = {"ours": [], "an epoch's beginning": []}
    stateful = importlib.util.find_spec("torchdata") is not None
    if stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader

        taken["StatefulDataLoader"] = []
        images = Images(shards, samples)
        loader = iter(StatefulDataLoader(images, BATCH, shuffle=True, num_workers=2))
        next(loader)
        state = _moved(loader, middle // BATCH)
    for number in range(rounds + 1):
        starts = [("ours", middle), ("an epoch's beginning", 0)]
        times = {name: first(start) for name, start in (starts if number % 2 else starts[::-1])}
        if stateful:
            begin_s = time.perf_counter()
            resumed = StatefulDataLoader(images, BATCH, shuffle=True, num_workers=2)
            resumed.load_state_dict(state)
            next(iter(resumed))
            times["StatefulDataLoader"] = time.perf_counter() - begin_s
        for name, value in times.items() if number else ():
            taken[name].append(value)
    return taken


def _moved(loader: Any, batches: int) -> Any:
    """The loader's state as after this many batches; loading them all would take an hour."""
    state = loader.state_dict()

    def move(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: _counted(key, one, batches) if isinstance(one, int) else move(one) for key, one in value.items()
            }
        return value

    return move(state)


def _counted(key: str, value: int, batches: int) -> int:
    if key in ("_num_yielded", "_sampler_iter_yielded", "_num_batches_fetched", "samples_yielded", "batches_yielded"):
        return batches * (BATCH if key == "samples_yielded" else 1)
    return value


def show(title: str, taken: dict[str, list[float]], targets: dict[str, float] = TARGETS) -> None:
    """Medians and ratios."""
    print(title)
    for name, times in taken.items():
        print(f"  {name:<22}  {statistics.median(times) * 1000:9.2f} ms")
    for name in list(taken)[1:]:
        said = verdict(ratios(taken["ours"], taken[name]), at_most=targets.get(name))
        print(f"  ours / {name}, median ratio: {said}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=5, help="resumes")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--samples", type=int, default=1_281_167, help="of the epoch that is resumed")
    options = parser.parse_args()
    _free_memory.keep(options.saves)
    with tempfile.TemporaryDirectory() as scratch, process_group() as world:
        directory = Path(scratch)
        with contextlib.redirect_stdout(sys.stderr):
            if make_shards.main(["synthetic", str(directory / "shards"), "--samples", "200", "--size", "120x160"]):
                raise RuntimeError("no shards were made")
        stall, whole = stalls(options.model, options.saves, directory, world)
        show(f"stall per save, {options.model} with momentum", stall)
        show("a save and the forward and backward pass after it", whole, targets={})
        show(
            f"first batch in mid-epoch, of {options.samples:,} samples",
            resumes(directory, options.rounds, options.samples, world),
        )


if __name__ == "__main__":
    main()
