"""The only place that opens files that a user names or a run has left: it waits for no pipe and reads no device."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_BYTES = 16_000_000
"""Far larger than any script, inventory or settings file."""

_BLOCK_BYTES = 1 << 20
_HOW = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TREE_FILES = 10_000
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}

StrPath = str | os.PathLike[str]


def read(path: StrPath, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """All of the file. Raises `OSError` with a readable `strerror` if it is not a file, too large, or unreadable."""
    fd = open_fd(path)
    try:
        return read_fd(fd, path, limit_bytes=limit_bytes)
    finally:
        os.close(fd)


def read_fd(fd: int, path: StrPath, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """`read` for a file that is already open."""
    blocks, left = [], limit_bytes + 1
    while left > 0 and (block := os.read(fd, min(left, _BLOCK_BYTES))):
        blocks.append(block)
        left -= len(block)
    if left <= 0:
        much = f"{limit_bytes // 1_000_000} MB" if limit_bytes >= 1_000_000 else f"{limit_bytes} bytes"
        raise OSError(errno.EFBIG, f"larger than {much}", os.fspath(path))
    return b"".join(blocks)


def read_text(path: StrPath) -> str:
    """The file as text. Raises `OSError` as `read` does, and if it is not UTF-8."""
    return text(read(path), path)


def text(data: bytes, path: StrPath) -> str:
    """The data as text. Raises `OSError` as `read_text` does."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OSError(
            errno.EILSEQ, f"not UTF-8 in line {error.object.count(10, 0, error.start) + 1}", os.fspath(path)
        ) from error


def open_fd(path: StrPath) -> int:
    """A descriptor of the file. Raises `OSError` as `read` does."""
    check(path)
    # The path may be a pipe by now: opened this way, it does not block.
    return _checked(os.open(path, _HOW), path)


def _checked(fd: int, path: StrPath) -> int:
    """The descriptor, if it is of a regular file; else it is closed, and `OSError` raised."""
    try:
        _check_mode(os.fstat(fd).st_mode, path)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def parent(directory: StrPath, name: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the parent of a path relative to `directory`, and the path's last part.

    No link below `directory` is followed: raises `NotADirectoryError`.
    """
    *above, last = name.split("/")
    how = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(directory, how)
    try:
        for step in above:
            inner = os.open(step, how | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, last
    finally:
        os.close(fd)


def look_below(directory: StrPath, name: str) -> tuple[os.stat_result, str, bool]:
    """The status of a path relative to the directory, without following links, and the target if it is a link.

    Also whether it may be another user's: owned by neither us nor root, in a world-writable directory.
    """
    with parent(directory, name) as (above, last):
        about = os.lstat(last, dir_fd=above)
        target = os.readlink(last, dir_fd=above) if stat.S_ISLNK(about.st_mode) else ""
        foreign = about.st_uid not in (0, os.getuid()) and bool(os.fstat(above).st_mode & stat.S_IWOTH)
        return about, target, foreign


def open_below(directory: StrPath, name: str) -> int:
    """`open_fd` for a path relative to the directory, without following links below it."""
    with parent(directory, name) as (above, last):
        _check_mode(os.lstat(last, dir_fd=above).st_mode, name)
        return _checked(os.open(last, _HOW | os.O_NOFOLLOW, dir_fd=above), name)


def open_file(path: StrPath) -> BinaryIO:
    """The file, to be read as it grows. Raises `OSError` as `read` does."""
    return open(open_fd(path), "rb", buffering=0)


def end_of(path: StrPath, limit_bytes: int, since: int = 0) -> bytes:
    """At most this many bytes of the file's end, and none before `since`. Raises `OSError` as `read` does."""
    with open_file(path) as file:
        file.seek(max(since, file.seek(0, os.SEEK_END) - limit_bytes))
        return file.read(limit_bytes)


def check(path: StrPath) -> None:
    """Raise `OSError` unless it is a regular file. Devices are not even opened."""
    try:
        _check_mode(os.stat(path).st_mode, path)
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have that name", os.fspath(path)) from None


def check_tree(paths: Sequence[StrPath]) -> None:
    """Raise `OSError` if a path, or a file below one, is a pipe, socket or device. Other programs read the files."""
    for path in paths:
        if not os.path.isdir(path):
            check(path)
        for number, (directory, _, names) in enumerate(os.walk(path)):
            for name in names if number < _TREE_FILES else ():
                inner = os.path.join(directory, name)
                if os.path.exists(inner):
                    check(inner)


def _check_mode(mode: int, path: StrPath) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"{kind}, not a file", os.fspath(path))
