"""Control groups of the testbed's nodes, by which their containers are found: those leave all namespaces of their host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import WaitError
from testbed.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/sys/fs/cgroup")


def roots() -> list[Path]:
    """Where the machine's hierarchies are mounted: one of version 2, or one for each controller of version 1."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(where) for _, where, kind, *_ in mounts if kind in {"cgroup", "cgroup2"} and where.startswith(str(ROOT))]


def make(name: str) -> None:
    """A group in each hierarchy, with the controllers that Kubernetes uses."""
    for root in roots():
        for controller in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb"):
            with contextlib.suppress(OSError):  # version 1 has no such file, and not every machine every controller
                (root / "cgroup.subtree_control").write_text(f"+{controller}")
        (root / name).mkdir(exist_ok=True)


def processes(pattern: str) -> list[Process]:
    """All processes in the groups of this name, or of names like it, and below."""
    return [process for group in _groups(pattern) for process in _inside(group)]


def kill(pattern: str, *, limit_s: float = 120) -> None:
    """SIGKILL all processes in the groups of this name, those that they start meanwhile included."""
    deadline = time.monotonic() + limit_s
    while left := processes(pattern):
        for process in left:
            process.send(signal.SIGKILL)
        if time.monotonic() > deadline:
            raise WaitError(f"waited {limit_s:g} s for these to die: " + "; ".join(process.command() for process in left))
        time.sleep(0.01)


def remove(pattern: str, *, limit_s: float = 120) -> None:
    """End all processes in the groups of this name, or of names like it, and remove the groups."""
    kill(pattern, limit_s=limit_s)
    deadline = time.monotonic() + limit_s
    while left := list(_groups(pattern)):
        for group in left:
            with contextlib.suppress(OSError):  # the last process may still be on its way out
                group.rmdir()
        if time.monotonic() > deadline:
            raise WaitError(f"waited {limit_s:g} s for control groups to be empty: {', '.join(map(str, left[:5]))}")
        time.sleep(0.01)


def _groups(pattern: str) -> Iterator[Path]:
    """The groups of this name and all below, the innermost first."""
    for root in roots():
        for top in root.glob(pattern):
            for directory, _, _ in os.walk(top, topdown=False):
                yield Path(directory)


def _inside(group: Path) -> list[Process]:
    """The processes of one group."""
    pids: list[str] = []
    with contextlib.suppress(OSError):  # gone meanwhile
        pids = (group / "cgroup.procs").read_text().split()
    return [process for pid in pids if pid != "0" and (process := Process.of(int(pid)))]
