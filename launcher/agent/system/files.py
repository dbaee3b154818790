"""Files that appear whole, also where a file system knows no hard links or cannot rename: object stores, Windows shares, FUSE."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import BinaryIO, Iterator, List, Optional

_NOT_KNOWN = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.EACCES, errno.EINVAL}
"""What file systems say to `link` and `rename` where they have no such thing."""

_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}

WORD_BYTES = 1 << 20
"""Far more than what processes tell one another in small files: an address, an identity, a cause with its traceback."""

_CLAIM_S = 10.0
"""So long a claim may be there before its file; then whoever made it has died in between, or stalls."""


def write_whole(path: str, data: bytes, mode: int = 0o644, *, sync: bool = True) -> None:
    """Replace the file: readers see the old content or all of the new one. `sync`: wait until it is on the disk."""
    with _beside(path, data, mode, sync) as temporary:
        _move(temporary, path, data, mode)


def write_once(path: str, data: bytes, mode: int = 0o644, *, sync: bool = True) -> bool:
    """Create the file with this content; False, and nothing is changed, when it exists already."""
    created: Optional[bool] = None
    while created is None:
        with _beside(path, data, mode, sync) as temporary:
            created = _create(temporary, path, data, mode)
    return created


def read_word(path: str, limit_bytes: int = WORD_BYTES) -> bytes:
    """All of a small file that another process has left. `OSError` for what is none: no pipe is waited for, no link followed."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no file", path)
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, "too large", path)
    return data


def read_end(path: str, limit_bytes: int) -> bytes:
    """The last bytes of a file, which may grow meanwhile."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
        return file.read()


def ends_within_a_line(file: BinaryIO) -> bool:
    """Whether the file's last line has no end; what is read or written next follows it."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _create(temporary: str, path: str, data: bytes, mode: int) -> Optional[bool]:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
        return _claim(temporary, path, data, mode)
    return True


def _claim(temporary: str, path: str, data: bytes, mode: int) -> Optional[bool]:
    """`write_once` without links. None: it took us so long that somebody else has taken over.

    The claim is a directory with the file in it, moved to a name that one alone can have while there is a file. From there the
    file moves to its place. Who takes a claim over moves it away, file and all: its owner finds nothing to move any more.
    """
    claim, own, name = path + ".claim", temporary + ".d", os.path.basename(temporary)
    os.mkdir(own, 0o700)
    try:
        os.rename(temporary, os.path.join(own, name))
        _get(claim, own, path)
        if os.path.lexists(path):  # also between the last look and our claim
            return False
        os.rename(os.path.join(claim, name), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
        return _create_in_place(path, data, mode)
    finally:
        for directory in (own, claim):
            _remove(directory, [name])
    return True


def _get(claim: str, own: str, path: str) -> None:
    """Make our directory the claim, unless somebody else is done with the file before."""
    seen, limit = [""], 0.0
    while not os.path.lexists(path):
        try:
            os.rename(own, claim)
        except OSError as error:
            if error.errno not in _TAKEN and not os.path.lexists(claim):  # others say EACCES then, as Windows shares do
                raise
        else:
            return
        holder = _names(claim)
        if holder != seen:
            seen, limit = holder, time.monotonic() + _CLAIM_S
        elif time.monotonic() >= limit:
            _take_away(claim, own + ".old")
        else:
            time.sleep(0.02)


def _take_away(claim: str, where: str) -> None:
    """A claim whose owner has died, which one alone can do; or stalls, and then has to claim anew."""
    with contextlib.suppress(FileNotFoundError):  # somebody else has
        os.rename(claim, where)
        _remove(where, _names(where))


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _remove(directory: str, names: List[str]) -> None:
    """The directory with these files, unless there are others in it."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _create_in_place(path: str, data: bytes, mode: int) -> bool:
    """Where nothing can be moved, either: object stores, which let one alone create it, and show it when it is closed."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    try:
        with open(fd, "wb") as file:
            file.write(data)
    except OSError:
        os.unlink(path)
        raise
    return True


def _move(temporary: str, path: str, data: bytes, mode: int) -> None:
    try:
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
        _write(path, data, os.O_TRUNC | os.O_NOFOLLOW, mode, sync=True)


@contextlib.contextmanager
def _beside(path: str, data: bytes, mode: int, sync: bool) -> Iterator[str]:
    """A flushed temporary file with the data in the path's own directory; removed afterwards where it is still there."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        _write(temporary, data, os.O_EXCL, mode, sync)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _write(path: str, data: bytes, how: int, mode: int, sync: bool) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | how, mode), "wb") as file:
        if not mode & 0o077:
            os.fchmod(file.fileno(), mode)  # where there was one that others could read
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
