"""WebDataset's tar shards, read at random: an index beside each shard says where every image is, and of which class.

A sample is what the members of a tar share up to the first dot of their names: an image (jpg, png, webp) and its class, either as
`cls` (a number as text) or as `json` (a number, or an object with `label`, `cls` or `class`).

The index `SHARD.idx` is a header and 16 bytes a sample, mapped into memory, so that ranks of one host share it. It holds the
shard's size and time of change and is built anew when they differ. Images are read by `preadv`, not mapped: what was
read does not count as this process's memory, and a shard that is cut off meanwhile is an error, not SIGBUS.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import resource
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from trainer.errors import InputError

IMAGES = ("jpg", "jpeg", "png", "webp")
RECORD = np.dtype([("offset", "<u8"), ("size", "<u4"), ("label", "<i4")])
HEADER = np.dtype(
    [("magic", "S8"), ("size", "<u8"), ("changed_ns", "<u8"), ("skipped", "<u4"), ("labels", "<i4", (2,)), ("problem", "S92")]
)
"""`labels`: the lowest and the highest; `skipped`: samples without image or class; `problem`: what is wrong with the tar."""

_MAGIC = b"dlindex1"
_FREE_FILES = 256
"""Files that may be open besides shards."""


class Index(NamedTuple):
    """Where one shard's samples are."""

    header: Any
    records: Any
    """of `RECORD`, (n,)"""


class ShardSet:
    """The samples of many shards under one numbering, in the shards' order."""

    def __init__(self, paths: Sequence[str], indices: Sequence[Index]) -> None:
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
        """What was wrong with shards and samples, one line each."""
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
        """The shard and the member of the tar, for messages."""
        shard, (offset, _, _) = self._record(number)
        head = bytearray(100)
        self._files.read_into(shard, head, offset - tarfile.BLOCKSIZE)
        return f"{self.paths[shard]}: {head.partition(bytes(1))[0].decode(errors='replace')}"

    def _record(self, number: int) -> tuple[int, tuple[int, int, int]]:
        """The sample's shard, and its offset, size and class."""
        shard = int(self.firsts.searchsorted(number, side="right")) - 1
        return shard, self.indices[shard].records[number - self.firsts[shard]].item()


class _OpenFiles:
    """Keeps shards open, as many as the system lets a process have; others are opened for each read."""

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
        """Fill `buffer` from the shard of that number; how many bytes there were. Called from many threads."""
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
    """The shards that `pattern` names: braces (`{000..127}`, `{a,b}`), wildcards, a folder with shards; joined by `::`.

    Raises `InputError` when there are none, or one that is spelt out is missing.
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
        raise InputError(f"--data {pattern}: {missing[0]} does not exist ({len(paths) - len(missing)} of {len(paths)} shards do)")
    return paths


def _braces(text: str) -> Iterator[str]:
    """`a{1..3}{x,y}` spelt out, as a shell does."""
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
    """The samples of all shards of `pattern`; builds the indices that are missing. Raises `InputError`."""
    paths = expand(pattern)
    shards = ShardSet(paths, [_find_index(path) or build_index(path) for path in paths])
    if not len(shards):
        raise InputError(f"--data {pattern}: no samples in {len(paths)} shards: {(shards.problems or ['they are empty'])[0]}")
    return shards


def build_share(pattern: str, rank: int, world_size: int) -> None:
    """Build this rank's share of the indices that are missing, so that `open_shards` finds all; raises `InputError`."""
    for path in expand(pattern)[rank::world_size]:
        if _find_index(path) is None:
            build_index(path)


def build_index(shard: str) -> Index:
    """Read through one tar, and keep its index beside it, or where the user's caches are if that cannot be written."""
    try:
        stat = os.stat(shard)
        records, header = _scan(shard)
    except OSError as error:
        raise InputError(f"{shard}: {error.strerror}") from error
    header["magic"], header["size"], header["changed_ns"] = _MAGIC, stat.st_size, stat.st_mtime_ns
    for place in _places(shard):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=place.parent, prefix=place.name, delete=False) as file:
                file.write(header.tobytes() + records.tobytes())
            os.chmod(file.name, 0o644)
            os.replace(file.name, place)
        except OSError:
            continue
        break
    return Index(header, records)


def _find_index(shard: str) -> Index | None:
    """The shard's index, if there is one that fits it."""
    try:
        stat = os.stat(shard)
    except OSError as error:
        raise InputError(f"{shard}: {error.strerror}") from error
    for place in _places(shard):
        try:
            size = place.stat().st_size
            if size < HEADER.itemsize or (size - HEADER.itemsize) % RECORD.itemsize:
                continue
            header = np.fromfile(place, HEADER, 1)[0]
        except OSError:
            continue
        if (header["magic"], header["size"], header["changed_ns"]) == (_MAGIC, stat.st_size, stat.st_mtime_ns):
            empty = size == HEADER.itemsize  # which cannot be mapped
            records = np.empty(0, RECORD) if empty else np.asarray(np.memmap(place, RECORD, "r", offset=HEADER.itemsize))
            return Index(header, records)
    return None


def _places(shard: str) -> tuple[Path, Path]:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    path = os.path.abspath(shard)
    return Path(path + ".idx"), caches / "distlaunch" / f"{hashlib.sha256(path.encode()).hexdigest()[:24]}.idx"


def _scan(shard: str) -> tuple[Any, Any]:
    """Records and header of a tar."""
    found: list[tuple[int, int, int]] = []
    header = np.zeros(1, HEADER)[0]
    try:
        for image, label in _samples(shard):
            if image is None or label is None:
                header["skipped"] += 1
            else:
                found.append((*image, label))
    except tarfile.TarError as error:
        header["problem"] = f"damaged or cut off ({error}); {len(found)} samples are whole".encode()
    records = np.array(found, RECORD)
    if len(records):
        header["labels"] = records["label"].min(), records["label"].max()
    return records, header


def _samples(shard: str) -> Iterator[tuple[tuple[int, int] | None, int | None]]:
    """Offset and size of each sample's image, and its class."""
    last: str | None = None
    image: tuple[int, int] | None = None
    label: int | None = None
    with tarfile.open(shard, "r:") as archive:
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            if last not in (None, folder + stem):
                yield image, label
                image, label = None, None
            last = folder + stem
            if kind.lower() in IMAGES:
                image = member.offset_data, member.size
            elif kind in ("cls", "json"):
                label = label_of(archive.extractfile(member).read(), label)  # type: ignore[union-attr]
    if last is not None:
        yield image, label


def label_of(text: bytes, known: int | None) -> int | None:
    """The class that a `cls` or `json` member names; `known` if it names none."""
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            value = next((value[name] for name in ("label", "cls", "class") if name in value), known)
        return known if value is None else int(value)
    except (ValueError, TypeError):
        return known
