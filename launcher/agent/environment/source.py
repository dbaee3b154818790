"""Where node 0 gets an environment from: a directory that it sees, or a packed file that it unpacks to its own disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from typing import Iterator, NamedTuple, Optional

from . import content
from .listing import listed, read_piece
from .manifest import BASE, ENV, BringError, Manifest, decode
from .shelf import Shelf
from .store import Store, errors_of_disk

TAR = (".tar.gz", ".tgz", ".tar")
SQUASHFS = (".squashfs", ".sqsh", ".sqfs")
LIST = "environment.json"
"""Next to spec.json, the list that a launcher has made."""

_UNPACK_S = 3600.0


class Source(NamedTuple):
    """An environment that can be read here."""

    encoded: bytes
    """The list of its files."""

    manifest: Manifest
    directory: Optional[str]
    """Where it is, if it is not where it was listed."""


@contextlib.contextmanager
def opened(path: str, store: Store, told: str) -> Iterator[Source]:
    """The environment at a path; `told`: the list of a launcher, if it has made one. Raises `BringError`."""
    if not os.path.exists(path):
        raise BringError(f"{path} is not on node 0, from which all other nodes would get it")
    if os.path.isdir(path):
        yield _of_directory(path, store, told)
        return
    kept = os.path.join(store.directory, "lists", f"{_name(path, os.stat(path))}.files")
    with contextlib.suppress(OSError, BringError):
        with open(kept, "rb") as file:
            encoded = file.read()
        manifest = decode(encoded)
        if not Shelf(store, manifest).lacking:  # nothing has to be unpacked
            yield Source(encoded, manifest, None)
            return
    directory = os.path.join(store.directory, f"unpacked-{os.getpid()}")
    try:
        with errors_of_disk(store.directory):
            _unpack(path, directory)
        manifest = listed(directory, "")._replace(source=os.path.realpath(path))
        encoded = manifest.encode()
        with open(kept, "wb") as file:
            file.write(encoded)
        yield Source(encoded, manifest, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _of_directory(path: str, store: Store, told: str) -> Source:
    with contextlib.suppress(FileNotFoundError), open(told, "rb") as file:
        encoded = file.read()
        return Source(encoded, decode(encoded), None)
    manifest = listed(path, list_of(store.directory, path))
    return Source(manifest.encode(), manifest, None)


def list_of(directory: str, path: str) -> str:
    """The file that keeps what is known of the files of an environment."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(directory, "lists", f"{name}.json")


def _name(path: str, about: os.stat_result) -> str:
    mark = json.dumps([os.path.realpath(path), about.st_mtime_ns, about.st_size, about.st_ino])
    return hashlib.sha256(mark.encode("ascii")).hexdigest()[:32]


def _unpack(path: str, directory: str) -> None:
    os.makedirs(directory, mode=0o700)
    if path.endswith(SQUASHFS):
        program = shutil.which("unsquashfs")
        if program is None:
            raise BringError(f"{path} can only be unpacked with unsquashfs, which node 0 does not have")
        done = subprocess.run(
            [program, "-force", "-no-progress", "-dest", directory, path], timeout=_UNPACK_S,
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BringError(f"{path}: {done.stderr.decode(errors='replace').strip()[-300:]}")
        return
    try:
        with tarfile.open(path) as tar:
            if hasattr(tarfile, "tar_filter"):  # "data" would refuse links to what is outside of the directory
                tar.extractall(directory, filter="tar")
            else:
                tar.extractall(directory)  # noqa: S202 - the user's own file
    except (tarfile.TarError, EOFError) as error:
        raise BringError(f"{path} cannot be unpacked: {error}") from error


def read(source: Source, shelf: Shelf) -> None:
    """Read what is missing into the store. Raises `BringError`."""
    manifest, lacking = source.manifest, shelf.lacking
    at = 0
    while at < len(lacking):
        file, first = shelf.pieces[lacking[at]].file, shelf.pieces[lacking[at]].first
        path = _path(source, file.path)
        changed = BringError(f"{path} has changed since it was listed: start again")
        try:
            stream = content.opened(path)
        except OSError as error:
            raise BringError(f"{path} cannot be read: {error.strerror}") from error
        if stream is None:
            raise changed
        with stream:
            for number in range(len(file.digests)):
                if not shelf.put(first + number, read_piece(stream)):
                    raise changed
        at += len(file.digests)
    assert not shelf.lacking, manifest.source


def _path(source: Source, path: str) -> str:
    top, _, rest = path.partition("/")
    if top == BASE:
        return os.path.join(source.manifest.base or "", rest)
    assert top == ENV
    return os.path.join(source.directory or source.manifest.source, rest)
