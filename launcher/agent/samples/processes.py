"""What the ranks of a node use: CPU time and memory of their processes, with all of their descendants."""

from __future__ import annotations

import os
import time
from typing import Dict, Iterable, List, Optional, Set

from ..named_tuple import NamedTuple
from ..system import processes

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARE = 0.0005
"""Looking for new descendants may take this share of a CPU; on a host with many processes they are found later."""


class Process(NamedTuple):
    """One process now."""

    parent: int
    start: int
    state: str
    cpu_s: float
    """Its own CPU time, and that of its children that have ended."""

    memory_bytes: int


class Use(NamedTuple):
    """What a rank's processes use together."""

    cpu: float
    """CPUs that they kept busy since the last call, or since the rank's start."""

    memory_bytes: int
    """Resident memory. Pages that several processes share count in each of them."""

    state: str
    """The state of the rank's own process, as in proc_pid_stat(5): `R`, `S`, `D`, `T`, ..."""


class Trees:
    """The processes of this node's ranks, by the pids of the workers."""

    def __init__(self, cgroup: Optional[str]) -> None:
        """`cgroup`: the directory of the cgroup that all of the run's processes on this node are in."""
        self._cgroup = cgroup
        self._known: Dict[int, Dict[int, int]] = {}
        """Start times of each worker's descendants, by their pids."""

        self._found: Set[int] = set()
        """Those that were found just now."""

        self._cpu_s: Dict[int, float] = {}
        self._looked_at = self._read_at = 0.0
        self._look_again_at = 0.0

    def use(self, workers: Iterable[int]) -> Dict[int, Use]:
        """What each of these workers uses; a worker that has ended is left out."""
        now, pids = time.monotonic(), list(workers)
        all_of_them = self._look(pids, now) if now >= self._look_again_at else None
        used = {pid: one for pid in pids if (one := self._of(pid, all_of_them, now)) is not None}
        self._read_at, self._found = now, set()
        self._known = {pid: tree for pid, tree in self._known.items() if pid in used}
        self._cpu_s = {pid: spent for pid, spent in self._cpu_s.items() if pid in used}
        return used

    def _of(self, pid: int, seen: Optional[Dict[int, Process]], now: float) -> Optional[Use]:
        root = seen.get(pid) if seen is not None else read(pid)
        if root is None:
            return None
        passed = now - self._read_at if pid in self._cpu_s else _uptime() - root.start / _TICKS
        spent_before, tree = self._cpu_s.get(pid, 0.0), [root]
        for child, start in self._known.get(pid, {}).items():
            process = seen.get(child) if seen is not None else read(child)
            if process is not None and process.start == start:
                tree.append(process)
                spent_before += _spent_before(process, passed) if child in self._found else 0.0
        spent = self._cpu_s[pid] = sum(process.cpu_s for process in tree)
        busy = max(0.0, spent - spent_before) / max(passed, 0.1)  # a child that no one waited for takes its time along
        return Use(busy, sum(process.memory_bytes for process in tree), root.state)

    def _look(self, workers: List[int], now: float) -> Dict[int, Process]:
        """Read all processes that may be descendants, and find those that are."""
        began = time.thread_time()
        seen = {pid: process for pid in self._candidates() if (process := read(pid)) is not None}
        children: Dict[int, List[int]] = {}
        for pid, process in seen.items():
            children.setdefault(process.parent, []).append(pid)
        for worker in workers:
            below = list(children.get(worker, ()))
            for pid in below:
                below += children.get(pid, ())
            before, self._known[worker] = self._known.get(worker, {}), {pid: seen[pid].start for pid in below}
            self._found.update(pid for pid in below if before.get(pid) != seen[pid].start)
        self._look_again_at = now + (time.thread_time() - began) / _SHARE
        return seen

    def _candidates(self) -> List[int]:
        if self._cgroup is not None:
            try:
                with open(f"{self._cgroup}/cgroup.procs", encoding="ascii") as file:
                    return [int(line) for line in file]
            except (OSError, ValueError):
                self._cgroup = None
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(pid: int) -> Optional[Process]:
    """The process now; None if there is none."""
    try:
        fields = processes.stat(pid)
        spent = sum(map(int, fields[11:15])) / _TICKS
        return Process(int(fields[1]), int(fields[19]), fields[0].decode(), spent, int(fields[21]) * _PAGE)
    except (OSError, ValueError, IndexError):
        return None


def _spent_before(process: Process, passed: float) -> float:
    """The CPU time of a process before the last `passed` seconds, if it has always been as busy."""
    age = _uptime() - process.start / _TICKS
    return process.cpu_s * (1 - passed / age) if age > passed else 0.0


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
