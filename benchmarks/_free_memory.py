"""Keeps a hypervisor from taking back free memory while something is measured.

With free page reporting (https://docs.kernel.org/mm/free_page_reporting.html), a guest tells the hypervisor which
blocks of 2 MiB are free, about two seconds after they were freed. The hypervisor takes them back, and the next process
that uses one waits for it: 2 to 10 microseconds for each page of 4 KiB, as measured here, which counts as CPU time of
that process. So a command that takes more memory, or runs later, pays more. A host without a hypervisor has nothing of
the kind.

A block of which one page is in use is not reported. So this process keeps one page of each block.
"""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.system import cgroup

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BYTES = 2 << 20
_PAGE_BYTES = mmap.PAGESIZE
_REPORTING = 5
"""The bit of VIRTIO_BALLOON_F_REPORTING."""

_BALLOONS = Path("/sys/bus/virtio/drivers/virtio_balloon")
_KEPT: list[int] = []
"""Files in memory, which the end of this process frees."""


def keep(rounds: int, size: int = 8 << 30) -> None:
    """Use so much memory once: it stays with this machine, free but for a page of 512, until this process ends.

    It is half of what is free, at most, for this machine and for our cgroup, and takes 5 to 20 s; so a single round,
    which is only a trial, goes without.
    """
    if rounds < 2 or _KEPT or not _is_reported():
        return
    size = min(size, min([_available(), *_allowed()]) // 2) // _BLOCK_BYTES * _BLOCK_BYTES
    if size <= 0:
        return
    kept = os.memfd_create("kept")  # no page of it is mapped: what we start, by fork or vfork, begins as without it
    block = bytes(_BLOCK_BYTES)
    for start in range(0, size, _BLOCK_BYTES):
        os.pwrite(kept, block, start)
    with mmap.mmap(kept, size) as whole:
        for start in range(0, size, _BLOCK_BYTES):
            whole.madvise(mmap.MADV_REMOVE, start + _PAGE_BYTES, _BLOCK_BYTES - _PAGE_BYTES)
    _KEPT.append(kept)


def _is_reported() -> bool:
    """Whether this machine reports free memory to a hypervisor."""
    found = (path.read_text(encoding="ascii") for path in _BALLOONS.glob("virtio*/features"))
    return any(bits[_REPORTING : _REPORTING + 1] == "1" for bits in found)


def _allowed() -> Iterator[int]:
    """What our cgroup, and each above it, may take up to its limit; the files that it has cached give way."""
    counters = [Path(name) for name in cgroup.memory_counters()]
    for directory in {parent for counter in counters for parent in counter.parents}:
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):  # "max": no limit
                left = int((directory / limit).read_text()) - int((directory / used).read_text())
                # In version 1, the sum with the groups below comes after the group's own.
                cached = re.findall(r"inactive_file (\d+)", (directory / "memory.stat").read_text())
                yield left + int(cached[-1])


def _available() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
