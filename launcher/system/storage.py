"""Files that appear whole: written to a temporary file, flushed to disk, then renamed atomically."""

from __future__ import annotations

import errno
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from launcher.agent.system import files
from launcher.errors import StorageError
from launcher.system import input_file, numbers, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

StrPath = str | os.PathLike[str]
_JSON_BYTES = 1 << 30
_LEFT_BYTES, _LEFT_PART = 1 << 30, 20
"""Data from nodes is stored while this many bytes, or this part of a smaller disk, remain free."""

_STEP_BYTES = 1 << 20


def write_whole(path: StrPath, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Replace the file: readers see either the old content or all of the new. Raises `StorageError`.

    `sync`: wait until it is on the disk.
    """
    with storage_errors(path):
        files.write_whole(os.fspath(path), data, mode, sync=sync)


def write_once(path: StrPath, data: bytes, *, mode: int = 0o644) -> bool:
    """Create the file with this content. Returns False, and changes nothing, if it already exists."""
    with storage_errors(path):
        return files.write_once(os.fspath(path), data, mode)


def encode_json(value: Any) -> bytes:
    """Readable JSON in ASCII. Text that is not valid UTF-8 is preserved as escapes."""
    return json.dumps(value, indent=1).encode("ascii") + b"\n"


def read_json(path: StrPath) -> dict[str, Any] | None:
    """The object in the file; None if it is missing, unreadable or not a JSON object."""
    return _json_of(lambda: _object(input_file.read(path, limit_bytes=_JSON_BYTES)))


def read_trusted_json(what: str, path: StrPath) -> dict[str, Any] | None:
    """`read_json` for a file that others must not be able to change. Raises `UntrustedError` if they can."""
    return _json_of(lambda: trusted_json(what, path))


def trusted_json(what: str, path: StrPath) -> dict[str, Any] | None:
    """`read_trusted_json`, but `OSError` if the file is missing, or cannot be read at the moment."""
    return _object(trust.read(what, path, limit_bytes=_JSON_BYTES))


def _json_of(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    with suppress(OSError):
        return read()
    return None


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = numbers.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def read_errors(path: StrPath) -> Iterator[None]:
    """Turn an `OSError` while reading the path into a `StorageError` that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{os.fspath(path)}: {error.strerror}") from error


@contextmanager
def storage_errors(path: StrPath, hint: str | None = None) -> Iterator[None]:
    """Turn an `OSError` while writing the path into a `StorageError` that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}", hint=hint) from error


def is_full(error: StorageError) -> bool:
    """Whether there was no room on the disk, or in the user's quota of it."""
    reason = error.__cause__
    return isinstance(reason, OSError) and reason.errno in (errno.ENOSPC, errno.EDQUOT)


class Room:
    """Keeps data from nodes, of unbounded size, from filling the disk of a directory."""

    def __init__(self) -> None:
        self._checked = 0

    def take(self, path: StrPath, size: int, hint: str) -> None:
        """Announce that `size` bytes will be written to the file. Raises `StorageError` if there is no room."""
        self._checked -= size
        if self._checked < 0:
            free, total = _space(os.path.dirname(path) or ".")
            left = min(_LEFT_BYTES, total // _LEFT_PART)
            if free - size < left:
                why = f"what nodes send leaves {left >> 20} MiB of its disk to others, and {free >> 20} MiB are free"
                raise StorageError(f"cannot write {os.fspath(path)!r}: {why}", hint=hint)
            self._checked = _STEP_BYTES


def _space(directory: StrPath) -> tuple[int, int]:
    """Available and total bytes of the disk that the directory is on."""
    about = os.statvfs(directory)
    return about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize
