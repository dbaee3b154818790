"""Control groups of the testbed's nodes, by which containers are found: they leave all namespaces of their host."""

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
    """Mount points of this machine's hierarchies: one for version 2, or one for each controller of version 1."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [
        Path(where) for _, where, kind, *_ in mounts if kind in {"cgroup", "cgroup2"} and where.startswith(str(ROOT))
    ]


def make(name: str) -> None:
    """Create a group in each hierarchy, with the controllers that Kubernetes uses."""
    for root in roots():
        for controller in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb"):
            with contextlib.suppress(OSError):  # version 1 has no such file, and a controller may be missing
                (root / "cgroup.subtree_control").write_text(f"+{controller}")
        (root / name).mkdir(exist_ok=True)


def processes(pattern: str) -> list[Process]:
    """All processes in the groups that match `pattern`, and below."""
    return [process for group in _groups(pattern) for process in _inside(group)]


def kill(pattern: str, *, limit_s: float = 120) -> None:
    """SIGKILL all processes in the groups that match `pattern`, including those that they start meanwhile."""
    deadline = time.monotonic() + limit_s
    while left := processes(pattern):
        for process in left:
            process.send(signal.SIGKILL)
        if time.monotonic() > deadline:
            raise WaitError(
                f"waited {limit_s:g} s for these to die: " + "; ".join(process.command() for process in left)
            )
        time.sleep(0.01)


def remove(pattern: str, *, limit_s: float = 120) -> None:
    """Kill all processes in the groups that match `pattern`, and remove the groups."""
    kill(pattern, limit_s=limit_s)
    deadline = time.monotonic() + limit_s
    while left := list(_groups(pattern)):
        for group in left:
            with contextlib.suppress(OSError):  # the last process may still be exiting
                group.rmdir()
        if time.monotonic() > deadline:
            raise WaitError(f"waited {limit_s:g} s for control groups to be empty: {', '.join(map(str, left[:5]))}")
        time.sleep(0.01)


def _groups(pattern: str) -> Iterator[Path]:
    """The groups that match `pattern` and all below, the innermost first."""
    for root in roots():
        for top in root.glob(pattern):
            for directory, _, _ in os.walk(top, topdown=False):
                yield Path(directory)


def _inside(group: Path) -> list[Process]:
    """The processes of one group."""
    pids: list[str] = []
    with contextlib.suppress(OSError):  # removed meanwhile
        pids = (group / "cgroup.procs").read_text().split()
    return [process for pid in pids if pid != "0" and (process := Process.of(int(pid)))]
