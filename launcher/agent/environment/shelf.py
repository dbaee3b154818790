"""The pieces of an environment on this node: written as they come, handed out to the next node as soon as they are."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import Dict, List, Optional, Tuple

from ..named_tuple import NamedTuple
from . import disks
from .manifest import PIECE_BYTES, BringError, File, Manifest
from .store import Store


class Piece(NamedTuple):
    """A part of a content."""

    file: File
    number: int
    """Of the file's pieces."""

    first: int
    """The index of its first piece among all."""

    @property
    def offset(self) -> int:
        """Where it begins in the file."""
        return self.number * PIECE_BYTES

    @property
    def size(self) -> int:
        """Its number of bytes."""
        return min(PIECE_BYTES, self.file.size - self.offset)

    def fits(self, data: bytes) -> bool:
        """Whether that is the piece."""
        return hashlib.sha256(data).hexdigest() == self.file.digests[self.number]


def pieces_of(manifest: Manifest) -> List[Piece]:
    """All pieces, in the order of the manifest; each content once."""
    found: List[Piece] = []
    seen = set()
    for file in manifest.files:
        key = (file.name, file.executable)
        if key not in seen:
            seen.add(key)
            first = len(found)
            found += [Piece(file, number, first) for number in range(len(file.digests))]
    return found


class Shelf:
    """The pieces that are here. Threads wait for those that are still to come."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store = store
        self.pieces = pieces_of(manifest)
        self.received_bytes = 0
        self.problem = ""
        """Why no more pieces will come."""

        self.damaged = ""
        """What turned out to be damaged on this node's disk."""

        self._changed = threading.Condition()
        self._parts: Dict[int, Tuple[int, int]] = {}
        """By the index of its first piece, a content that is being written: its descriptor, and the missing pieces."""

        self._here = bytearray(len(self.pieces))
        for piece in self.pieces:
            if piece.number == 0 and store.has(piece.file):
                self._set(piece.first, len(piece.file.digests))

    def _set(self, first: int, count: int) -> None:
        self._here[first : first + count] = b"\1" * count

    @property
    def lacking(self) -> List[int]:
        """The indices of the missing pieces."""
        return [index for index, here in enumerate(self._here) if not here]

    def put(self, index: int, data: bytes) -> bool:
        """Keep a piece; False if it is damaged. Raises `FullError`."""
        piece = self.pieces[index]
        if not piece.fits(data):
            return False
        if self._here[index]:
            return True
        first, count = piece.first, len(piece.file.digests)
        fd, missing = self._parts.get(first) or (self.store.begin(piece.file), count)
        self._parts[first] = fd, missing - 1
        with disks.errors(self.store.directory):
            view, at = memoryview(data), piece.offset
            while view:
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done
        if missing == 1:
            self.store.finish(piece.file, fd)
        with self._changed:
            if missing == 1:
                os.close(self._parts.pop(first)[0])
            self._here[index] = 1
            self.received_bytes += len(data)
            self._changed.notify_all()
        return True

    def opened(self, index: int, limit_s: float) -> Optional[int]:
        """A descriptor of the file with the piece, once it is here; None if it did not come in time, or never will."""
        piece, limit = self.pieces[index], time.monotonic() + limit_s
        with self._changed:
            while not self._here[index]:
                left = limit - time.monotonic()
                if self.problem or left <= 0:
                    return None
                self._changed.wait(left)
            part = self._parts.get(piece.first)
            if part is not None:
                return os.dup(part[0])
        return os.open(self.store.object(piece.file), os.O_RDONLY | os.O_CLOEXEC)

    def check(self, index: int) -> None:
        """Whether what is kept of a piece is what it has to be; if not, its content is removed from here.

        Raises `BringError` then.
        """
        piece = self.pieces[index]
        fd = self.opened(index, 0.0)
        if fd is None:
            return
        try:
            data = os.pread(fd, piece.size, piece.offset)
        finally:
            os.close(fd)
        if not piece.fits(data):
            self.store.drop(piece.file)
            self.damaged = (
                f"{self.store.object(piece.file)} was damaged on this node's disk, and is removed: start again"
            )
            raise BringError(self.damaged)

    def fail(self, problem: str) -> None:
        """No more pieces will come."""
        with self._changed:
            self.problem = problem
            self._changed.notify_all()

    def close(self) -> None:
        """Remove contents that are not whole; another run may have them whole meanwhile."""
        for first, (fd, _) in self._parts.items():
            os.close(fd)
            self.store.abandon(self.pieces[first].file)
        self._parts.clear()
