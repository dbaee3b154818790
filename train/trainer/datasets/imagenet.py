"""`--data imagenet`: ImageNet as torchvision unpacks it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from trainer.datasets.dataset import Data, Dataset, encoded, from_torchvision, in_turn
from trainer.datasets.directory import Directory
from trainer.decode import need_torchvision

if TYPE_CHECKING:
    from trainer.config import Config


def prepare(config: Config, _rank: int, _world_size: int) -> None:
    """Unpack the archives, unless that is done; of ranks that share a disk, one does it and the others wait."""
    need_torchvision("--data imagenet")
    root = os.path.expanduser(config.data_dir)
    if not _unpacked(root):
        with in_turn(root):
            for train in () if _unpacked(root) else (True, False):
                open_set(root, train=train)


def _unpacked(root: str) -> bool:
    return all(os.path.exists(os.path.join(root, name)) for name in ("meta.bin", "train", "val"))


def load(config: Config) -> Data:
    """Its training set, and its validation set for testing."""
    need_torchvision("--data imagenet")
    root = os.path.expanduser(config.data_dir)
    return encoded(config, open_set(root, train=True), open_set(root, train=False))


def open_set(root: str, *, train: bool) -> Directory:
    """The training or the validation set; raises `InputError`."""
    from torchvision import datasets

    make = partial(datasets.ImageNet, root, split="train" if train else "val")
    found = from_torchvision("imagenet", root, "put its archives there", make)
    return Directory(root, found.samples, found.wnids)


DATASETS = (Dataset(load, "imagenet", prepare=prepare),)
