"""`--data SHARDS`: WebDataset tar shards, read at random by the index of each (`shard_index`).

Images are read by `preadv`, not mapped: what has been read does not count as the process's memory, and a shard that is
truncated during the run is an error, not SIGBUS.
"""

from __future__ import annotations

import glob
import os
import re
import resource
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Sequence

import numpy as np

from trainer.datasets import shard_index
from trainer.datasets.dataset import Data, Dataset, encoded
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import Config

_FREE_FILES = 256
"""Files that may be open besides shards."""


class ShardSet:
    """The samples of many shards under one numbering, in the shards' order."""

    def __init__(self, paths: Sequence[str], indices: Sequence[shard_index.Index]) -> None:
        self.paths, self.indices = paths, indices
        self.firsts = np.cumsum([0, *(len(index.records) for index in indices)])
        """Number of each shard's first sample, and one past the last."""
        self._files = _OpenFiles(paths)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def classes(self) -> int:
        """One more than the highest label."""
        return 1 + max(int(index.header["labels"][1]) for index in self.indices if len(index.records))

    @property
    def problems(self) -> list[str]:
        """Problems of shards and samples, one line each."""
        found = [(path, str(index.header["problem"], "utf-8")) for path, index in zip(self.paths, self.indices)]
        lines = [f"{path}: {problem}" for path, problem in found if problem]
        skipped = [(path, int(index.header["skipped"])) for path, index in zip(self.paths, self.indices)]
        return lines + [f"{path}: {count} samples without an image or a class" for path, count in skipped if count]

    def read(self, number: int) -> tuple[bytearray, int]:
        """The bytes of one image, and its class; raises `OSError`."""
        shard, (offset, size, label) = self._record(number)
        blob = bytearray(size)
        got = self._files.read_into(shard, blob, offset)
        if got < size:
            raise OSError(f"the shard ends before byte {offset + size}; it was cut off since it was indexed")
        return blob, label

    def name(self, number: int) -> str:
        """The shard and the tar member, for messages."""
        shard, (offset, _, _) = self._record(number)
        head = bytearray(100)
        self._files.read_into(shard, head, offset - tarfile.BLOCKSIZE)
        return f"{self.paths[shard]}: {head.partition(bytes(1))[0].decode(errors='replace')}"

    def _record(self, number: int) -> tuple[int, tuple[int, int, int]]:
        """The sample's shard, and its offset, size and class."""
        shard = int(self.firsts.searchsorted(number, side="right")) - 1
        return shard, self.indices[shard].records[number - self.firsts[shard]].item()


class _OpenFiles:
    """Keeps as many shards open as the process's limit allows; others are opened for each read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = len(paths) + _FREE_FILES
        if soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.most = soft - _FREE_FILES
        self.open: dict[int, int] = {}

    def read_into(self, shard: int, buffer: bytearray, offset: int) -> int:
        """Fill `buffer` from shard number `shard`; return the number of bytes read. Called from many threads."""
        kept = self.open.get(shard)
        if kept is not None:
            return os.preadv(kept, [buffer], offset)
        file = os.open(self.paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.preadv(file, [buffer], offset)
        finally:
            if len(self.open) >= self.most or self.open.setdefault(shard, file) != file:
                os.close(file)

    def __del__(self) -> None:
        for file in self.open.values():
            os.close(file)


def expand(pattern: str) -> list[str]:
    """The shards that `pattern` names by braces (`{000..127}`, `{a,b}`), wildcards or a directory; joined by `::`.

    Raises `InputError` if there are none, or one that is spelt out is missing.
    """
    paths: list[str] = []
    for part in pattern.split("::"):
        for given in _braces(os.path.expanduser(part)):
            name = os.path.join(glob.escape(given), "*.tar") if os.path.isdir(given) else given
            paths += sorted(glob.glob(name)) if glob.has_magic(name) else [name]
    if not paths:
        raise InputError(f"--data {pattern}: no shards match; shards are files named like data-000000.tar")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise InputError(
            f"--data {pattern}: {missing[0]} does not exist ({len(paths) - len(missing)} of {len(paths)} shards do)"
        )
    return paths


def _braces(text: str) -> Iterator[str]:
    """Expand `a{1..3}{x,y}` as a shell does."""
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        yield text
        return
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if numbers:
        width = len(numbers[1])
        choices = [f"{number:0{width}d}" for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    else:
        choices = found[1].split(",")
    for choice in choices:
        yield from _braces(text[: found.start()] + choice + text[found.end() :])


def open_shards(pattern: str) -> ShardSet:
    """The samples of all shards of `pattern`; builds missing indices. Raises `InputError`."""
    paths = expand(pattern)
    shards = ShardSet(paths, [shard_index.find(path) or shard_index.build(path) for path in paths])
    if not len(shards):
        raise InputError(
            f"--data {pattern}: no samples in {len(paths)} shards: {(shards.problems or ['they are empty'])[0]}"
        )
    return shards


def build_share(pattern: str, rank: int, world_size: int) -> None:
    """Build this rank's share of the missing indices, so that `open_shards` finds all; raises `InputError`."""
    for path in expand(pattern)[rank::world_size]:
        if shard_index.find(path) is None:
            shard_index.build(path)


def is_shards(data: str) -> bool:
    """Whether `--data` means shards."""
    return (
        data.endswith(".tar")
        or "{" in data
        or "::" in data
        or (os.path.isdir(data) and bool(list(Path(data).glob("*.tar"))))
    )


def prepare(config: Config, rank: int, world_size: int) -> None:
    """Build this rank's share of the missing indices."""
    for pattern in filter(None, (config.data, config.test_data)):
        build_share(pattern, rank, world_size)


def load(config: Config) -> Data:
    """Training and test set; without `--test-data`, a part of the training set is held out."""
    train = open_shards(config.data)
    test = open_shards(config.test_data) if config.test_data else None
    data = encoded(config, train, test, config.classes or train.classes)
    data.problems.extend(problem for one in (train, test) if one for problem in one.problems)
    if config.strict and data.problems:
        raise InputError(f"{data.problems[0]} (--strict)")
    if test and test.classes > data.classes:
        raise InputError(f"--test-data has labels up to {test.classes - 1}, --data has {data.classes} classes")
    if train.classes > data.classes:
        raise InputError(f"--data {config.data} has labels up to {train.classes - 1}, but --classes is {data.classes}")
    return data


DATASETS = (Dataset(load, takes=lambda data, reader: reader == "index" and is_shards(data), prepare=prepare),)
