"""`--data mnist`, `fashion-mnist`, `cifar10`, `cifar100`: torchvision's data sets that fit in memory."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import interpolate

from trainer.datasets.dataset import Data, Dataset, from_torchvision, in_turn
from trainer.decode import need_torchvision
from trainer.errors import InputError
from trainer.sources import InMemory

if TYPE_CHECKING:
    from trainer.config import Config

PIXELS = {
    "mnist": ((33.3,), (78.6,)),
    "fashion-mnist": ((72.9,), (90.0,)),
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}
"""Mean and deviation of the pixels (0 to 255), by channel."""


def prepare(config: Config, _rank: int, _world_size: int) -> None:
    """With `--download`, let one rank of each host download, and hosts that share a disk one after the other."""
    if config.download and os.environ.get("LOCAL_RANK", "0") == "0":
        need_torchvision(f"--data {config.data}")
        root = os.path.expanduser(config.data_dir)
        with suppress(OSError):  # torchvision reports it
            os.makedirs(root, exist_ok=True)
        with in_turn(root):
            open_set(config.data, root, train=True, download=True)


def load(config: Config) -> Data:
    """CIFAR or MNIST, held in memory as uint8."""
    need_torchvision(f"--data {config.data}")
    root = os.path.expanduser(config.data_dir)
    (channels, height, width), (mean, std) = config.image_shape, PIXELS[config.data]
    if len(mean) not in (1, channels):
        raise InputError(f"--data {config.data} has images of {len(mean)} channels, --image-shape {channels}")
    sets = [open_set(config.data, root, train=train) for train in (True, False)]
    images = [torch.as_tensor(one.data) for one in sets]
    images = [pixels.permute(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None] for pixels in images]
    if tuple(images[0].shape[2:]) != (height, width):
        images = [interpolate(pixels, size=(height, width), mode="bilinear", antialias=True) for pixels in images]
    images = [pixels.expand(-1, channels, -1, -1) for pixels in images]
    labels = [torch.as_tensor(one.targets) for one in sets]
    natural = config.data.startswith("cifar")
    train = InMemory(images[0], labels[0], seed=config.seed, moves=config.augment and natural, flips=natural)
    scale = channels // len(mean)
    return Data(train, InMemory(images[1], labels[1]), len(sets[0].classes), mean * scale, std * scale)


def open_set(name: str, root: str, *, train: bool, download: bool = False) -> Any:
    """Torchvision's data set, with `data`, `targets` and `classes`; raises `InputError` if it is not below `root`."""
    from torchvision import datasets

    kinds = {"mnist": datasets.MNIST, "fashion-mnist": datasets.FashionMNIST, "cifar10": datasets.CIFAR10}
    kinds["cifar100"] = datasets.CIFAR100
    make = partial(kinds[name], root, train=train, download=download)
    return from_torchvision(name, root, "set --data-dir" if download else "add --download, or set --data-dir", make)


_small = partial(Dataset, load, prepare=prepare)
DATASETS = (
    _small("mnist", small=(1, 28, 28), epochs=3),
    _small("fashion-mnist", small=(1, 28, 28), epochs=5),
    _small("cifar10", small=(3, 32, 32), side=32, epochs=30),
    _small("cifar100", small=(3, 32, 32), side=32, epochs=30),
)
