"""Moves a process's memory to huge pages, part by part: a fork then copies one entry of its page table, not 512.

A child gets single pages again where it writes. `MADV_COLLAPSE` (Linux 6.1, madvise(2)) works whatever the system's
setting for transparent huge pages is, and changes nothing that the process can see.
"""

from __future__ import annotations

import contextlib
from typing import Iterator, Tuple

_COLLAPSE = 25
_SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
_MOST_BYTES = 4 << 20
"""Where pages are larger than that, most of one would be empty."""


def parts() -> Iterator[None]:
    """Move the next huge page with each step, until all are moved; a kernel that cannot is left alone."""
    import ctypes

    size = _size()
    if not 0 < size <= _MOST_BYTES:
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for first, last in list(_anonymous()):
        for at in range(-(-first // size) * size, last // size * size, size):
            advise(at, size, _COLLAPSE)  # refused for a part that it cannot move
            yield


def _size() -> int:
    with contextlib.suppress(OSError, ValueError), open(_SIZE, encoding="ascii") as file:
        return int(file.read())
    return 0


def _anonymous() -> Iterator[Tuple[int, int]]:
    """The mappings that belong to no file and may be written: first address, and the one after the last."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            place, rights, _, _, inode, *name = line.split(None, 5)
            if rights[:2] == "rw" and inode == "0" and (not name or name[0].strip() == "[heap]"):
                first, last = place.split("-")
                yield int(first, 16), int(last, 16)
