"""`--data DIRECTORY`: images as files, a directory per class (ImageFolder's layout)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Iterable, Sequence

import numpy as np

from trainer.datasets.dataset import Data, Dataset, encoded
from trainer.datasets.shards import is_shards
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import Config

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class Directory:
    """Files and their classes. The paths are one string: a million string objects would take 200 MB per rank."""

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


def open_directory(root: str) -> Directory:
    """The images below `root`, whose subdirectories are the classes, sorted by name; raises `InputError`."""
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise InputError(f"--data {root}: {error.strerror}") from error
    if not classes:
        raise InputError(f"--data {root}: a directory of images has a directory per class in it, this one has none")
    found = Directory(
        root, ((path, label) for label, name in enumerate(classes) for path in _images(root, name)), classes
    )
    missing = set(range(len(classes))) - set(found._labels.tolist())
    if missing:
        raise InputError(f"--data {root}: no image in {classes[min(missing)]} ({', '.join(SUFFIXES)} are images)")
    return found


def _images(root: str, name: str) -> Iterable[str]:
    for directory, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
        yield from (os.path.join(directory, file) for file in sorted(files) if file.lower().endswith(SUFFIXES))


def load(config: Config) -> Data:
    """A directory of class directories, or one with `train` and `val` (or `test`) in it."""
    root = os.path.expanduser(config.data)
    test = os.path.expanduser(config.test_data) if config.test_data else None
    if os.path.isdir(os.path.join(root, "train")):
        inside = (os.path.join(root, name) for name in ("val", "test") if os.path.isdir(os.path.join(root, name)))
        root, test = os.path.join(root, "train"), test or next(inside, None)
    train_set, test_set = open_directory(root), open_directory(test) if test else None
    if test_set and test_set.classes != train_set.classes:
        odd = sorted(set(test_set.classes) ^ set(train_set.classes))
        raise InputError(
            f"{root} has {len(train_set.classes)} classes and {test} {len(test_set.classes)}; not in both: {odd[0]}"
        )
    if config.classes not in (None, len(train_set.classes)):
        raise InputError(f"--classes {config.classes}, but {root} has {len(train_set.classes)} class directories")
    return encoded(config, train_set, test_set)


def takes(data: str, reader: str) -> bool:
    """Whether `data` is a directory without shards."""
    return reader == "index" and os.path.isdir(os.path.expanduser(data)) and not is_shards(data)


DATASETS = (Dataset(load, takes=takes),)
