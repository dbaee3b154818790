"""Files that appear whole, also where a file system knows no hard links or cannot rename: object stores, Windows shares, FUSE."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Iterator

_NOT_KNOWN = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.EACCES, errno.EINVAL}
"""What file systems say to `link` and `rename` where they have no such thing."""

_CLAIM_S = 10.0
"""So long a claim may be there before its file; then whoever made it has died in between."""


def write_whole(path: str, data: bytes, mode: int = 0o644, *, sync: bool = True) -> None:
    """Replace the file: readers see the old content or all of the new one. `sync`: wait until it is on the disk."""
    with _beside(path, data, mode, sync) as temporary:
        _move(temporary, path, data, mode)


def write_once(path: str, data: bytes, mode: int = 0o644, *, sync: bool = True) -> bool:
    """Create the file with this content; False, and nothing is changed, when it exists already."""
    with _beside(path, data, mode, sync) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NOT_KNOWN:
                raise
            return _claim(temporary, path, data, mode)
        return True


def _claim(temporary: str, path: str, data: bytes, mode: int) -> bool:
    """`write_once` without links: who creates the claim, which every file system lets one alone do, puts the file there."""
    claim = path + ".claim"
    limit = time.monotonic() + _CLAIM_S
    while not os.path.lexists(path):
        try:
            os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        except FileExistsError:
            if time.monotonic() < limit:
                time.sleep(0.02)
                continue
        try:
            if os.path.lexists(path):  # between our look and our claim
                return False
            _move(temporary, path, data, mode)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(claim)
        return True
    return False


def _move(temporary: str, path: str, data: bytes, mode: int) -> None:
    try:
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
        _write(path, data, os.O_TRUNC, mode, sync=True)


@contextlib.contextmanager
def _beside(path: str, data: bytes, mode: int, sync: bool) -> Iterator[str]:
    """A flushed temporary file with the data in the path's own folder; removed afterwards where it is still there."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        _write(temporary, data, os.O_EXCL, mode, sync)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _write(path: str, data: bytes, how: int, mode: int, sync: bool) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | how, mode), "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
