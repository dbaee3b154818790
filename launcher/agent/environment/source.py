"""Where node 0 gets an environment from: a directory that it sees, or a packed file that it unpacks to its own disk."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time
import zlib
from typing import Iterator, List, Optional, Tuple

from ..named_tuple import NamedTuple
from . import content, disks
from .listing import listed, read_piece
from .manifest import BASE, ENV, BringError, File, Manifest, decode
from .shelf import Piece, Shelf
from .store import Store

TAR = (".tar.gz", ".tgz", ".tar")
SQUASHFS = (".squashfs", ".sqsh", ".sqfs")
LIST = "environment.json"
"""Next to spec.json, the list that a launcher has made, or has sent with the environment itself."""

_UNPACK_S = 3600.0
_NEW_S = 60.0


class Source(NamedTuple):
    """An environment that can be read here."""

    encoded: bytes
    """The list of its files."""

    manifest: Manifest
    directory: Optional[str]
    """Where it is, if it is not where it was listed."""


@contextlib.contextmanager
def opened(path: str, store: Store, told: str) -> Iterator[Source]:
    """The environment at a path; `told`: the list of a launcher, if there is one. Raises `BringError`."""
    known = known_list(told)
    if known is not None and _can_be_had(known, Shelf(store, known.manifest), path, told):
        yield known
        return
    if not os.path.exists(path):
        raise BringError(
            f"{path} is not on node 0, from which all other nodes would get it: name one on a disk that node 0 sees"
        )
    if os.path.isdir(path):
        yield of_directory(path, store.directory)
        return
    kept = list_of_packed(store.directory, path)
    known = known_list(kept)
    if known is not None and not Shelf(store, known.manifest).lacking:  # nothing has to be unpacked
        yield known
        return
    with store.unpacking() as directory:
        with disks.errors(store.directory):
            found = unpacked(path, directory, kept)
        yield found


def _can_be_had(known: Source, shelf: Shelf, path: str, told: str) -> bool:
    """Whether what is missing of a listed environment can be read: it may have changed while the run was queued.

    Only files that are newer than the list are looked into, and a new list is taken as it is.
    """
    if not shelf.lacking or not os.path.isdir(path):
        return not shelf.lacking
    listed_at = os.stat(told).st_mtime_ns
    if time.time() - listed_at / 10**9 < _NEW_S:
        return True
    missing = {shelf.pieces[index].file.path for index in shelf.lacking}
    newer = {path for path in missing if _is_newer(known, path, listed_at)}
    looked_into = [index for index in shelf.lacking if shelf.pieces[index].file.path in newer]
    try:
        return all(shelf.pieces[index].fits(data) for index, data in contents(known, shelf.pieces, looked_into))
    except BringError:
        return False


def _is_newer(known: Source, path: str, than_ns: int) -> bool:
    """Whether a file, or the source of bytecode, was changed or put there since, or is missing.

    Another environment that gets a link to it, as from the cache of uv or conda, changes its ctime, too, but no
    directory of this one.
    """
    there, top = _path(known, path), _path(known, path.partition("/")[0])
    try:
        for each in filter(None, (there, content.source_of(there))):
            about = os.stat(each)
            may_be_link = about.st_nlink > 1 and about.st_mtime_ns < than_ns
            if about.st_ctime_ns >= than_ns and not (may_be_link and _directories_changed_at(each, top) < than_ns):
                return True
    except OSError:
        return True
    return False


def _directories_changed_at(path: str, top: str) -> int:
    """When the latest of those that have the file has changed, up to the environment's."""
    changed_at = 0
    while len(path) > len(top):
        path = os.path.dirname(path)
        changed_at = max(changed_at, os.stat(path).st_ctime_ns)
    return changed_at


def of_directory(path: str, kept: str) -> Source:
    """The environment in a directory; `kept`: where what is known of its files is kept. Raises `BringError`."""
    manifest = listed(path, list_of(kept, path))
    return Source(manifest.encode(), manifest, None)


def unpacked(path: str, directory: str, kept: str) -> Source:
    """The environment in a packed file, unpacked to an empty directory; `kept`: the file that gets its list."""
    _unpack(path, directory)
    names = os.listdir(directory)
    inner = os.path.join(directory, names[0]) if len(names) == 1 else ""
    if os.path.isdir(inner) and names != ["bin"]:  # it was packed with its directory
        directory = inner
    try:
        manifest = listed(directory, "")._replace(source=os.path.realpath(path))
    except BringError as error:
        raise BringError(f"{path}: {str(error).replace(directory, 'its content')}") from error
    encoded = manifest.encode()
    with open(kept, "wb") as file:
        file.write(encoded)
    return Source(encoded, manifest, directory)


def known_list(path: str) -> Optional[Source]:
    """The environment with the list in a file; None if there is no such file, or if it is damaged."""
    with contextlib.suppress(OSError, BringError), open(path, "rb") as file:
        encoded = file.read()
        return Source(encoded, decode(encoded), None)
    return None


def list_of(directory: str, path: str) -> str:
    """The file that keeps what is known of the files of an environment."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(directory, "lists", f"{name}.json")


def list_of_packed(directory: str, path: str) -> str:
    """The file that keeps the list of an environment that is packed."""
    about = os.stat(path)
    mark = json.dumps([os.path.realpath(path), about.st_mtime_ns, about.st_size, about.st_ino])
    return os.path.join(directory, "lists", f"{hashlib.sha256(mark.encode('ascii')).hexdigest()[:32]}.files")


def _unpack(path: str, directory: str) -> None:
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
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BringError(f"{path} cannot be unpacked: {error}") from error


def read(source: Source, shelf: Shelf) -> None:
    """Read what is missing into the store. Raises `BringError`."""
    for index, data in contents(source, shelf.pieces, shelf.lacking):
        if not shelf.put(index, data):
            raise changed(source, shelf.pieces[index].file)
    assert not shelf.lacking, source.manifest.source


def contents(source: Source, pieces: List[Piece], lacking: List[int]) -> Iterator[Tuple[int, bytes]]:
    """The files of these pieces, piece by piece, with the index of each. Raises `BringError`."""
    at = 0
    while at < len(lacking):
        file, first = pieces[lacking[at]].file, pieces[lacking[at]].first
        path = _path(source, file.path)
        try:
            stream = content.opened(path)
        except OSError as error:
            raise BringError(f"{path} cannot be read: {error.strerror}") from error
        if stream is None:
            raise changed(source, file)
        with stream:
            for number in range(len(file.digests)):
                yield first + number, read_piece(stream)
        at += len(file.digests)


def changed(source: Source, file: File) -> BringError:
    """A file is not what was listed."""
    return BringError(f"{_path(source, file.path)} has changed since it was listed: start again")


def _path(source: Source, path: str) -> str:
    top, _, rest = path.partition("/")
    if top == BASE:
        return os.path.join(source.manifest.base or "", rest)
    assert top == ENV
    return os.path.join(source.directory or source.manifest.source, rest)
