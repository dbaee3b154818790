"""Files that appear whole: written beside their place, flushed to disk, then moved there in one step."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from launcher import input_file, numbers, trust
from launcher.agent import files
from launcher.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

StrPath = str | os.PathLike[str]
_JSON_BYTES = 1 << 30


def write_whole(path: StrPath, data: bytes, *, mode: int = 0o644) -> None:
    """Replace the file: readers see the old content or all of the new one. Raises `StorageError`."""
    with storage_errors(path):
        files.write_whole(os.fspath(path), data, mode)


def write_once(path: StrPath, data: bytes, *, mode: int = 0o644) -> bool:
    """Create the file with this content; False, and nothing is changed, when it exists already."""
    with storage_errors(path):
        return files.write_once(os.fspath(path), data, mode)


def encode_json(value: Any) -> bytes:
    """Readable JSON in ASCII; text that is no valid UTF-8 survives as escapes."""
    return json.dumps(value, indent=1).encode("ascii") + b"\n"


def read_json(path: StrPath) -> dict[str, Any] | None:
    """The object in the file; None when it is missing, unreadable or no JSON object."""
    return _json_of(lambda: input_file.read(path, limit_bytes=_JSON_BYTES))


def read_trusted_json(what: str, path: StrPath) -> dict[str, Any] | None:
    """`read_json` of a file that nobody else may have a hand in, else `UntrustedError`."""
    return _json_of(lambda: trust.read(what, path, limit_bytes=_JSON_BYTES))


def _json_of(read: Callable[[], bytes]) -> dict[str, Any] | None:
    try:
        value = numbers.loads(read())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def storage_errors(path: StrPath, hint: str | None = None) -> Iterator[None]:
    """Turns an `OSError` about the path into a `StorageError` that names it."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}", hint=hint) from error
