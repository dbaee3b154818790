"""The launching host's part: what node 0 lacks of an environment that it does not see is read here, and sent there.

The other end is `ssh/environment.py`.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shutil
import socket
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ..named_tuple import NamedTuple
from ..system import trust
from . import source as sources
from .manifest import BringError
from .serving import indices
from .shelf import pieces_of
from .wire import LostError

HEAD = struct.Struct("!II")
"""Before each piece: its index, and the number of its bytes as they are sent."""

_KEPT = "~/.distlaunch/environments"
_PART_BYTES = 8 << 20
_COMPRESSORS = 4
_LEVEL = 1
_LOOKED_AT = ("", "pyvenv.cfg", "bin", "conda-meta")


def mark_of(path: str) -> Optional[List[List[Any]]]:
    """What two hosts that share the disk see alike, and others do not; None if there is nothing at that path.

    A network file system keeps inodes and times, but not the numbers of devices. Every installer changes the time of
    the directory of packages.
    """
    if not os.path.exists(path):
        return None
    packages = [os.path.relpath(each, path) for each in sorted(glob.glob(f"{glob.escape(path)}/lib/*/site-packages"))]
    found: List[List[Any]] = []
    for name in (*_LOOKED_AT, *packages):
        with contextlib.suppress(OSError):
            about = os.stat(os.path.join(path, name) if name else path)
            found.append([name, about.st_ino, about.st_mtime_ns])
    return found


class Part(NamedTuple):
    """Some pieces, as they are sent at once."""

    raw_bytes: int
    """Their size on the disk."""

    data: bytes


class Here:
    """An environment on this host. What is packed is unpacked only if it has to be read."""

    def __init__(self, path: str, say: Callable[[str], object]) -> None:
        """List it; `say` gets what takes a while. Raises `BringError`."""
        self._path, self._say = path, say
        self._kept = _own_directory()
        self._own = ""
        self._source = self._listed()
        self.encoded = self._source.encoded
        self.notes = self._source.manifest.notes
        self.total_bytes = self._source.manifest.total_bytes
        self._pieces = pieces_of(self._source.manifest)

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _listed(self) -> sources.Source:
        if os.path.isdir(self._path):
            self._say(f"listing {self._path}")
            return sources.of_directory(self._path, self._kept)
        return sources.known_list(sources.list_of_packed(self._kept, self._path)) or self._unpacked()

    def _unpacked(self) -> sources.Source:
        import tempfile

        self._say(f"unpacking {self._path}")
        self._own = tempfile.mkdtemp(f"-{os.getpid()}", f"unpacked-{socket.gethostname()}-", self._kept)
        return sources.unpacked(self._path, self._own, sources.list_of_packed(self._kept, self._path))

    def lacking(self, told: Dict[str, Any]) -> Optional[List[int]]:
        """The indices of the pieces that a host lacks; None if its answer does not tell."""
        try:
            return indices(told, len(self._pieces))
        except LostError:
            return None

    def size_of(self, lacking: List[int]) -> int:
        """How many bytes these pieces have."""
        return sum(self._pieces[index].size for index in lacking)

    def parts(self, lacking: List[int]) -> Iterator[Part]:
        """These pieces, each part prepared while the one before it is sent. Raises `BringError`."""
        if lacking and not os.path.isdir(self._path) and self._source.directory is None:
            self._source = self._unpacked()
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(_COMPRESSORS) as pool:
            made = self._made(lacking, pool)
            coming = reader.submit(next, made, None)
            while (part := coming.result()) is not None:
                coming = reader.submit(next, made, None)
                yield part

    def _made(self, lacking: List[int], pool: ThreadPoolExecutor) -> Iterator[Part]:
        some: List[Tuple[int, bytes]] = []
        size = 0
        for index, data in sources.contents(self._source, self._pieces, lacking):
            some.append((index, data))
            size += len(data)
            if size >= _PART_BYTES:
                yield Part(size, b"".join(pool.map(self._packed, some)))
                some, size = [], 0
        if some:
            yield Part(size, b"".join(pool.map(self._packed, some)))

    def _packed(self, one: Tuple[int, bytes]) -> bytes:
        index, data = one
        piece = self._pieces[index]
        if hashlib.sha256(data).hexdigest() != piece.file.digests[piece.number]:
            raise sources.changed(self._source, piece.file)
        sent = zlib.compress(data, _LEVEL)
        return HEAD.pack(index, len(sent)) + sent


@contextlib.contextmanager
def opened(path: str, say: Callable[[str], object]) -> Iterator[Here]:
    """The environment at a path of this host. Raises `BringError`."""
    here: Optional[Here] = None
    try:
        here = Here(path, say)
        yield here
    finally:
        if here is not None:
            here.close()


def _own_directory() -> str:
    """Where lists are kept; what a launcher that was killed has unpacked there is removed."""
    top = os.path.expanduser(_KEPT)
    found = trust.make(os.path.join(top, "lists")) or trust.problem(top)
    if found is not None:
        raise BringError(f"{found.message} ({found.hint})")
    here = re.compile(rf"unpacked-{re.escape(socket.gethostname())}-[a-z0-9_]+-(\d+)")  # others may be on the same disk
    for name in os.listdir(top):
        if (left := here.fullmatch(name)) and not os.path.exists(f"/proc/{left[1]}"):
            shutil.rmtree(os.path.join(top, name), ignore_errors=True)
    return top
