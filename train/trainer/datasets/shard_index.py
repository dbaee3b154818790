"""The index of a WebDataset tar shard: where every image is, and its class.

The members of a tar that share a name up to the first dot are one sample: an image (jpg, jpeg, png, webp) and its
class, either as `cls` (a number as text) or as `json` (a number, or an object with `label`, `cls` or `class`).

The index `SHARD.idx` is a header and 16 bytes per sample, mapped into memory, so that the ranks of a host share it. It
holds the shard's size and modification time, and is rebuilt when they differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import numpy as np

from trainer.errors import InputError

IMAGES = ("jpg", "jpeg", "png", "webp")
RECORD = np.dtype([("offset", "<u8"), ("size", "<u4"), ("label", "<i4")])
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("size", "<u8"),
        ("changed_ns", "<u8"),
        ("skipped", "<u4"),
        ("labels", "<i4", (2,)),
        ("problem", "S92"),
    ]
)
"""`labels`: lowest and highest; `skipped`: samples without image or class; `problem`: what is wrong with the tar."""

_MAGIC = b"dlindex2"
_PART = 2**20


class Index(NamedTuple):
    """The positions of one shard's samples."""

    header: Any
    records: Any
    """Of dtype `RECORD`, (n,)."""


def build(shard: str) -> Index:
    """Index one tar, and keep the index next to it, or in the user's cache directory if that cannot be written."""
    try:
        stat = os.stat(shard)
        records, header = _scan(shard)
    except OSError as error:
        raise InputError(f"{shard}: {error.strerror}") from error
    header["magic"], header["size"], header["changed_ns"] = _MAGIC, stat.st_size, stat.st_mtime_ns
    for place in _places(shard):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=place.name) as beside:
                made = Path(beside, place.name)
                made.write_bytes(header.tobytes() + records.tobytes())
                made.chmod(0o644)
                made.replace(place)
        except OSError:
            continue
        break
    return Index(header, records)


def find(shard: str) -> Index | None:
    """The shard's index, if there is an up-to-date one."""
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
            empty = size == HEADER.itemsize  # nothing to map
            records = (
                np.empty(0, RECORD) if empty else np.asarray(np.memmap(place, RECORD, "r", offset=HEADER.itemsize))
            )
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
    """Offset and size of each sample's image, and its class; raises `tarfile.TarError` where the tar is damaged."""
    last: str | None = None
    image: tuple[int, int] | None = None
    label: int | None = None
    with tarfile.open(shard, "r:") as archive:
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep all members
            if not member.isfile():
                continue
            directory, _, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            if last not in (None, directory + stem):
                yield image, label
                image, label = None, None
            last = directory + stem
            if kind.lower() in IMAGES:
                image = member.offset_data, member.size
            elif kind in ("cls", "json"):
                label = label_of(archive.extractfile(member).read(), label)  # type: ignore[union-attr]
    whole = _ends(shard, archive.offset)
    if last is not None and (whole or None not in (image, label)):
        yield image, label
    if not whole:
        raise tarfile.ReadError(f"at byte {archive.offset}")


def _ends(shard: str, offset: int) -> bool:
    """Whether there are only zeros from `offset`, a block of them at least: tarfile takes a damaged header for that."""
    with open(shard, "rb") as file:
        file.seek(offset)
        part = file.read(tarfile.BLOCKSIZE)
        whole = len(part) == tarfile.BLOCKSIZE
        while part and not any(part):
            part = file.read(_PART)
    return whole and not part


def label_of(text: bytes, known: int | None) -> int | None:
    """The class that a `cls` or `json` member names; `known` if it names none."""
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            value = next((value[name] for name in ("label", "cls", "class") if name in value), known)
        return known if value is None else int(value)
    except (ValueError, TypeError):
        return known
