"""Files that appear whole, even without hard links or renames: on object stores, Windows shares and FUSE."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import Any, BinaryIO, Iterator, List, Optional

_NOT_KNOWN = {
    errno.EPERM,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EMLINK,
    errno.EXDEV,
    errno.EACCES,
    errno.EINVAL,
}
"""Errors of `link` and `rename` on file systems that do not support them."""

_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}

SENT_MTIME_S = 946_684_800
"""2000-01-01: the time of files that a launcher has sent, and not 0, which ninja takes for "missing"."""

WORD_BYTES = 1 << 20
"""Far more than the small files between processes contain: an address, an identity, a cause with its traceback."""

_CLAIM_S = 10.0
"""How long a claim may exist before its file does; after that, its owner has died or is stalled."""


def write_whole(path: str, data: bytes, mode: int = 0o644, *, sync: bool = True) -> None:
    """Replace the file: readers see the old content or all of the new. `sync`: wait until it is on the disk."""
    with _beside(path, data, mode, sync) as temporary:
        _move(temporary, path, data, mode)


def write_once(path: str, data: bytes, mode: int = 0o644, *, sync: bool = True) -> bool:
    """Create the file with this content; False, and nothing is changed, if it already exists."""
    created: Optional[bool] = None
    while created is None:
        with _beside(path, data, mode, sync) as temporary:
            created = _create(temporary, path, data, mode)
    return created


def read_word(path: str, limit_bytes: int = WORD_BYTES) -> bytes:
    """Read a small file that another process has left. Raises `OSError` if it is a link, a pipe or too large."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, "too large", path)
    return data


def read_end(path: str, limit_bytes: int) -> bytes:
    """The last bytes of a file, which may be growing."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
        return file.read()


def remove_tree(path: str) -> None:
    """Remove the directory; that it is gone, or that another host removes it too, is no error.

    Our own directories that are read-only are made writable. `OSError` with a whole path if something stays.
    """
    import shutil  # most processes remove no tree

    errors: List[OSError] = []

    def note(_call: object, at: str, about: Any) -> None:
        if not isinstance(about[1], FileNotFoundError):
            about[1].filename = at  # it had a name only
            errors.append(about[1])

    shutil.rmtree(path, onerror=note)
    if errors:
        errors.clear()
        _make_writable(path)
        shutil.rmtree(path, onerror=note)
    if errors:
        raise errors[0]


def _make_writable(top: str) -> None:
    """Let us change all directories in the tree, as far as they are ours."""
    paths = [] if os.path.islink(top) else [top]
    while paths:
        path = paths.pop()
        with contextlib.suppress(OSError):
            os.chmod(path, stat.S_IMODE(os.lstat(path).st_mode) | stat.S_IRWXU)
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            paths += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def ends_within_a_line(file: BinaryIO) -> bool:
    """Whether the file's last line is unterminated; leaves the position at the end of the file."""
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
    """`write_once` without links. None: this process was too slow, and another one has taken over.

    The claim is a directory that contains the file, renamed to a name that no other directory can take until it is
    empty. From there, the file moves to its place. A process that takes over a claim moves it away with the file, so
    that the owner finds nothing to move.
    """
    claim, own, name = path + ".claim", temporary + ".d", os.path.basename(temporary)
    os.mkdir(own, 0o700)
    try:
        os.rename(temporary, os.path.join(own, name))
        _get(claim, own, path)
        if os.path.lexists(path):  # created between the last check and our claim
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
    """Make our directory the claim, unless another process completes the file first."""
    seen, limit = [""], 0.0
    while not os.path.lexists(path):
        try:
            os.rename(own, claim)
        except OSError as error:
            if error.errno not in _TAKEN and not os.path.lexists(claim):  # Windows shares, for example, report EACCES
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
    """Move away the claim of an owner that has died, or that stalls and must claim anew; only one process can."""
    with contextlib.suppress(FileNotFoundError):  # another process has
        os.rename(claim, where)
        _remove(where, _names(where))


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _remove(directory: str, names: List[str]) -> None:
    """Remove these files, and the directory unless it contains others."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _create_in_place(path: str, data: bytes, mode: int) -> bool:
    """`write_once` without renames, on object stores: only one process can create a file, shown once closed."""
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
    """A flushed temporary file with the data in the path's own directory, removed afterwards if it still exists."""
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
            os.fchmod(file.fileno(), mode)  # an existing file may be readable by others
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
