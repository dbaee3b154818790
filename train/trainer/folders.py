"""Images as files: a folder per class (ImageFolder's layout), and torchvision's data sets."""

from __future__ import annotations

import os
from typing import Any, Iterable, Sequence

import numpy as np

from trainer.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class Folder:
    """Files and their classes. The paths are kept as one string: a million of them as objects would take 200 MB a rank."""

    def __init__(self, root: str, files: Iterable[tuple[str, int]], classes: Sequence[str]) -> None:
        self.root, self.classes = root, classes
        names, ends, labels = bytearray(), [], []
        for name, label in files:
            names += os.fsencode(os.path.relpath(name, root))
            ends.append(len(names))
            labels.append(label)
        self._names, self._labels = bytes(names), np.array(labels, np.int32)
        self._ends = np.array([0, *ends], np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, number: int) -> tuple[bytearray, int]:
        """A file's bytes and its class; raises `OSError`."""
        with open(self.name(number), "rb", buffering=0) as file:
            blob = bytearray(os.fstat(file.fileno()).st_size)
            if file.readinto(blob) != len(blob) or not blob:
                raise OSError("an empty file" if not blob else "the file was cut off while it was read")
            return blob, int(self._labels[number])

    def name(self, number: int) -> str:
        """The file's path."""
        return os.path.join(self.root, os.fsdecode(self._names[self._ends[number] : self._ends[number + 1]]))


def open_folder(root: str) -> Folder:
    """The images below `root`, whose subfolders are the classes, in the order of their names; raises `InputError`."""
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise InputError(f"--data {root}: {error.strerror}") from error
    if not classes:
        raise InputError(f"--data {root}: a folder of images has a folder per class in it, this one has none")
    found = Folder(root, ((path, label) for label, name in enumerate(classes) for path in _images(root, name)), classes)
    missing = set(range(len(classes))) - set(found._labels.tolist())
    if missing:
        raise InputError(f"--data {root}: no image in {classes[min(missing)]} ({', '.join(SUFFIXES)} are images)")
    return found


def _images(root: str, name: str) -> Iterable[str]:
    for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
        yield from (os.path.join(folder, file) for file in sorted(files) if file.lower().endswith(SUFFIXES))


def torchvision_set(name: str, root: str, *, train: bool, download: bool) -> Any:
    """One of torchvision's data sets; raises `InputError` where it is not below `root`."""
    from torchvision import datasets

    try:
        if name == "imagenet":
            return datasets.ImageNet(root, split="train" if train else "val")
        kind = {"mnist": datasets.MNIST, "fashion-mnist": datasets.FashionMNIST, "cifar10": datasets.CIFAR10}
        return {**kind, "cifar100": datasets.CIFAR100}[name](root, train=train, download=download)
    except (RuntimeError, OSError) as error:
        advice = "put its archives there" if name == "imagenet" else "add --download, or set --data-dir"
        raise InputError(f"--data {name}: not in {root}; {advice} ({(str(error).splitlines() or [''])[0]})") from error


def imagenet(root: str, *, train: bool) -> Folder:
    """ImageNet as torchvision unpacks it."""
    found = torchvision_set("imagenet", root, train=train, download=False)
    return Folder(root, found.samples, found.wnids)
