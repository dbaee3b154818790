"""What a worker and the processes below it have used: CPU time, and bytes that they have read and written."""

from __future__ import annotations

import contextlib
import os
from typing import Collection, Dict, Tuple

from ..system import processes

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Places of utime and stime in what `processes.stat` returns."""


def of_each(pids: Collection[int]) -> Dict[int, Tuple[float, int]]:
    """CPU seconds and bytes of each process and all below it; of what has ended meanwhile, nothing."""
    families = {pid: [pid, *(each for each, _ in below)] for pid, below in processes.below_each(pids).items()}
    return {pid: (sum(map(_cpu, every)), sum(map(_bytes, every))) for pid, every in families.items()}


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = processes.stat(pid)
        return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    return 0.0


def _bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        fields = dict(line.split(": ") for line in file.read().splitlines())
        return int(fields["rchar"]) + int(fields["wchar"])
    return 0
