"""A directory on a slow file server: `python _slow_directory.py SOURCE MOUNT MILLISECONDS`. Needs root, and no library.

A read-only view of SOURCE over FUSE. Each request takes that long, one after another, and the kernel keeps no names
or attributes, as with a file server that many nodes ask at one moment.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, RELEASE, INIT = 1, 2, 3, 5, 14, 15, 18, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 27, 28, 29, 36, 42
_SILENT = (FORGET, INTERRUPT, BATCH_FORGET)
_REQUEST_BYTES = 1 << 18
_HEAD = struct.Struct("<2I2Q")
_BODY = 40
_FIXED = {
    INIT: struct.pack("<4I2H2I2HI7I", 7, 31, 131072, 0, 12, 10, 65536, 1, 32, 0, 0, *[0] * 7),
    OPEN: bytes(16),
    OPENDIR: bytes(16),
    RELEASE: b"",
    RELEASEDIR: b"",
}
"""Answers that are always the same."""


class Directory:
    """The view: a number for each path, and its requests."""

    def __init__(self, source: str) -> None:
        self._paths = {1: source}
        self._numbers = {source: 1}

    def answer(self, kind: int, number: int, body: bytes) -> bytes | None:
        """The answer to a request; None if it is not implemented. Raises `OSError`."""
        path = self._paths.get(number, "")
        if kind == LOOKUP:
            found = os.path.join(path, os.fsdecode(body.rstrip(b"\0")))
            return struct.pack("<4Q2I", self._number(found), 0, 0, 0, 0, 0) + self._attributes(found)
        if kind == READLINK:
            return os.fsencode(os.readlink(path))
        if kind in (READ, READDIR):
            _, offset, size = struct.unpack_from("<2QI", body)
            return _read(path, offset, size) if kind == READ else self._names(path, offset, size)
        if kind == GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + self._attributes(path)
        return _FIXED.get(kind)

    def _number(self, path: str) -> int:
        number = self._numbers.setdefault(path, len(self._numbers) + 1)
        self._paths[number] = path
        return number

    def _attributes(self, path: str) -> bytes:
        about = os.lstat(path)
        times = [int(about.st_atime), int(about.st_mtime), int(about.st_ctime)]
        parts = [about.st_atime_ns, about.st_mtime_ns, about.st_ctime_ns]
        return struct.pack(
            "<6Q10I", self._number(path), about.st_size, about.st_blocks, *times, *(each % 10**9 for each in parts),
            about.st_mode, about.st_nlink, about.st_uid, about.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def _names(self, path: str, offset: int, size: int) -> bytes:
        found = b""
        for at, name in enumerate(sorted(os.listdir(path))[offset:], offset + 1):
            encoded = os.fsencode(name)
            kind = stat.S_IFMT(os.lstat(os.path.join(path, name)).st_mode) >> 12
            entry = struct.pack("<2Q2I", self._number(os.path.join(path, name)), at, len(encoded), kind) + encoded
            entry += b"\0" * (-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found


def _read(path: str, offset: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def serve(source: str, mount: str, request_s: float) -> None:
    """Serve until the directory is unmounted."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slow", mount.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    directory = Directory(source)
    while True:
        try:
            request = os.read(fd, _REQUEST_BYTES)
        except OSError:  # unmounted
            return
        _, kind, unique, number = _HEAD.unpack_from(request)
        if kind in _SILENT:
            continue
        time.sleep(request_s)
        try:
            data, error = directory.answer(kind, number, request[_BODY:]), 0
        except OSError as problem:
            data, error = b"", problem.errno or 5
        if data is None:
            data, error = b"", 38  # ENOSYS
        os.write(fd, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000)
