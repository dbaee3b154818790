"""Files that arrive in pieces: complete under a hidden name, then renamed; an interrupted one continues later."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.system import flock
from launcher.errors import StorageError
from launcher.system import storage

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 1 << 20
_NAME_BYTES = 200


class Partial:
    """The beginning of a file that is to be at `path`; only one process at a time writes it."""

    def __init__(self, path: Path) -> None:
        """Continues what an earlier transfer has left. Raises `StorageError`."""
        self.path = path
        self.sha256 = hashlib.sha256()
        self.size = 0
        self._room = storage.Room()
        name = os.fsencode(path.name)
        known = hashlib.sha256(name).hexdigest()[:16].encode() if len(name) > _NAME_BYTES else name
        self._hidden = path.parent / os.fsdecode(b"." + known + b".distlaunch-part")
        with storage.storage_errors(path):
            if path.is_dir() and not path.is_symlink():
                raise StorageError(f"cannot write {str(path)!r}: it is a directory", hint="--to DIR names another one")
            path.parent.mkdir(parents=True, exist_ok=True)
            # No link is followed: another user may have put it there.
            fd = os.open(self._hidden, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._file = open(fd, "r+b", buffering=0)  # noqa: SIM115 - closed by `close`
            try:
                free = flock.taken(fd)
            except OSError:
                self._file.close()
                raise
        if not free:
            self._file.close()
            hint = "wait until it has ended, or --to another directory"
            raise StorageError(f"another process is fetching {str(path)!r}", hint=hint)

    def resume(self, at_most: int) -> int:
        """Keep what is there of a file of this size; returns the number of bytes."""
        with storage.storage_errors(self.path):
            if os.fstat(self._file.fileno()).st_size > at_most:
                self.restart()
            while block := self._file.read(_BLOCK_BYTES):
                self.sha256.update(block)
                self.size += len(block)
        return self.size

    def restart(self) -> None:
        """Forget what is there."""
        with storage.storage_errors(self.path):
            self._file.seek(0)
            self._file.truncate()
        self.sha256, self.size = hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        """Append data. If the disk does not take it, the whole part is removed."""
        view = memoryview(data)
        hint = "make room there, or --to a directory on another disk"
        try:
            with storage.storage_errors(self.path, hint):
                self._room.take(self.path, len(data), hint)
                while view:
                    view = view[self._file.write(view) :]
        except StorageError:
            self.discard()
            raise
        self.sha256.update(data)
        self.size += len(data)

    def finish(self, mtime_ns: int) -> None:
        """Flush it to disk, and give it its name."""
        try:
            os.fsync(self._file.fileno())
            os.utime(self._file.fileno(), ns=(mtime_ns, mtime_ns))
            os.replace(self._hidden, self.path)
        except OSError as error:
            self.discard()
            raise StorageError(f"cannot write {str(self.path)!r}: {error.strerror}") from error
        self._file.close()

    def discard(self) -> None:
        """Remove what is there."""
        with suppress(OSError):
            self._hidden.unlink()
        self.close()

    def close(self) -> None:
        """Leave what is there for a later transfer; nothing, if nothing is."""
        if not self._file.closed and not self.size:
            with suppress(OSError):
                self._hidden.unlink()
        self._file.close()
