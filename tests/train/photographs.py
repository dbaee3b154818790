"""Shards of small photographs, and batches of them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.loader import Batches

SAMPLES = 60


def spelt_out(directory: Path) -> str:
    return str(directory / "data-{000000..000002}.tar")


def rebuilt(shard: Path, change: Any) -> None:
    """Write `shard` again with what `change(name, bytes)` returns for each member; None leaves it out."""
    with tarfile.open(shard) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(shard, "w") as tar:
        for name, blob in members:
            new = change(name, blob)
            if new is not None:
                info = tarfile.TarInfo(name)
                info.size = len(new)
                tar.addfile(info, io.BytesIO(new))


def batches(*argv: str, rank: int = 0, count: int = 1) -> Batches:
    """The batches of one rank."""
    import torch
    from trainer.datasets import load_data
    from trainer.flags import parse
    from trainer.loader import Batches
    from trainer.world import World

    config = parse(["--model", "resnet18", "--image-shape", "3x24x32", "--batch-size", "8", *argv], count)
    return Batches(load_data(config, count), config, World(rank, rank, count, torch.device("cpu")))
