"""The content of an environment's files as it travels: bytecode names the time that all files get."""

from __future__ import annotations

import io
import os
import re
import struct
from typing import BinaryIO, Callable, Optional, Tuple

from .manifest import STAMP_S

_CACHED = re.compile(r"(.+/)__pycache__/([^/]+?)\.[^/.]+(?:\.opt-[^/.]*)?\.pyc\Z")
_HEAD = struct.Struct("<4sIII")
"""Magic number, flags, and if these are 0 the source's modification time and size."""


def source_of(path: str) -> Optional[str]:
    """The source file of cached bytecode; None for any other file."""
    found = _CACHED.match(path)
    return f"{found[1]}{found[2]}.py" if found else None


def opened(path: str) -> Optional[BinaryIO]:
    """The file as it travels; None if it is bytecode that Python would not use."""
    source = source_of(path)
    if source is None:
        return open(path, "rb", buffering=0)
    with open(path, "rb") as file:
        code = file.read()
    try:
        return _stamped(code, os.stat(source))
    except FileNotFoundError:
        return None


def _stamped(code: bytes, source: os.stat_result) -> Optional[BinaryIO]:
    if len(code) < _HEAD.size:
        return None
    magic, flags, stamp, size = _HEAD.unpack_from(code)
    if flags:  # it names its source's content
        return io.BytesIO(code)
    if (stamp, size) != (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF):
        return None
    return io.BytesIO(_HEAD.pack(magic, flags, STAMP_S, size) + code[_HEAD.size :])


def mark(path: str, stat: Callable[[str], os.stat_result]) -> Tuple[int, ...]:
    """Changes whenever what travels may: the file's time, size and inode, and those of its source."""
    marks = []
    for each in filter(None, (path, source_of(path))):
        try:
            about = stat(each)
        except FileNotFoundError:
            continue
        marks += [about.st_mtime_ns, about.st_size, about.st_ino]
    return tuple(marks)
