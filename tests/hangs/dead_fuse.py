"""A FUSE file system whose files never answer a read: `python dead_fuse.py DIRECTORY`. Needs root, and no library."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR, INTERRUPT = 1, 2, 3, 14, 15, 26, 27, 36
ENOSYS = 38


def attributes(inode: int) -> bytes:
    mode = 0o040755 if inode == 1 else 0o100644
    return struct.pack("<6Q10I", inode, 1 << 20, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(kind: int, inode: int) -> bytes | None:
    """The answer to a request, or None if it is not implemented."""
    if kind == INIT:
        return struct.pack("<4I2H2I2HI7I", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0, *[0] * 7)
    if kind == LOOKUP:
        return struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + attributes(2)
    if kind == GETATTR:
        return struct.pack("<Q2I", 3600, 0, 0) + attributes(inode)
    return struct.pack("<Q2I", 1, 0, 0) if kind in (OPEN, OPENDIR) else None


def serve(directory: str) -> None:
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"dead", directory.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    while True:
        _, kind, unique, inode = struct.unpack_from("<2I2Q", os.read(fd, 1 << 18))
        if kind in (READ, INTERRUPT, FORGET):
            continue
        data = answer(kind, inode)
        os.write(fd, struct.pack("<IiQ", 16 + len(data or b""), 0 if data else -ENOSYS, unique) + (data or b""))


if __name__ == "__main__":
    serve(sys.argv[1])
