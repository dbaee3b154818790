"""A cgroup for the run, if one can be created: with it, even processes that both subreapers lost are found."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Collection, List, Optional

from .processes import start_ticks

_EMPTY_S = 5.0
_TOP = 2
"""The number of slashes in /sys/fs, below which all cgroups are mounted."""

_NO_LIMIT = 1 << 60
"""A v1 controller without a limit reports nearly 2^63."""


def _own_directory(controller: Optional[str] = None) -> Optional[str]:
    """The directory of our cgroup in the unified (v2) hierarchy, or in that of a v1 controller."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = [line.strip().split(":", 2) for line in file]
    except OSError:
        return None
    if controller is None:
        points = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
    else:
        points = [fields[1] for fields in mounts if fields[2] == "cgroup" and controller in fields[3].split(",")]
    paths = [path for _, controllers, path in groups if (controller or "") in controllers.split(",")]
    return points[-1].rstrip("/") + paths[0].rstrip("/") if points and paths else None


def memory_counters() -> List[str]:
    """Files that count out-of-memory events in our cgroup; the paths that a container sees come last."""
    unified, old = _own_directory(), _own_directory("memory")
    found = [f"{unified}/memory.events"] if unified else []
    found += [f"{old}/memory.oom_control"] if old else []
    return [*found, "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]


def memory_limit() -> Optional[int]:
    """How many bytes our cgroup may use, by its own limit and those above it; None: no limit."""
    limits = []
    for directory, name in ((_own_directory(), "memory.max"), (_own_directory("memory"), "memory.limit_in_bytes")):
        while directory and directory.count("/") > _TOP:
            with contextlib.suppress(OSError, ValueError), open(f"{directory}/{name}", encoding="ascii") as file:
                limits.append(int(file.read()))  # "max": no limit
            directory = os.path.dirname(directory)  # noqa: PLW2901 - goes up
    found = min(limits, default=_NO_LIMIT)
    return found if found < _NO_LIMIT else None


def _remove_dead(directory: str) -> None:
    """Remove empty cgroups of agents that were killed with all their processes; names end with pid and start time."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            of, *identity = name.rsplit("-", 2)
            if of.startswith("distlaunch-") and all(part.isdigit() for part in identity):
                pid, ticks = map(int, identity)
                if start_ticks(pid) != ticks:
                    with contextlib.suppress(OSError):  # a process in it is running
                        os.rmdir(os.path.join(directory, name))


def create(name: str) -> Optional[str]:
    """Create a cgroup below ours, `distlaunch-RUN-NODE-PID-TICKS` for the agent with that identity.

    None if there is no v2 hierarchy or it is not writable.
    """
    directory = _own_directory()
    if directory is None:
        return None
    _remove_dead(directory)
    path = os.path.join(directory, name)
    try:
        os.mkdir(path)
    except OSError:
        return None
    if os.path.exists(os.path.join(path, "cgroup.procs")):
        return path
    os.rmdir(path)
    return None


def add(path: str, pid: int) -> bool:
    """Move a process, and all that it starts from now on, into the cgroup."""
    try:
        with open(os.path.join(path, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(pid))
    except OSError:
        return False
    return True


def members(path: str) -> List[int]:
    """The processes in the cgroup; empty if it does not exist."""
    try:
        with open(os.path.join(path, "cgroup.procs"), encoding="ascii") as file:
            return [int(line) for line in file]
    except OSError:
        return []


def remove(path: str, keep: Collection[int] = ()) -> None:
    """Kill all processes in the cgroup, wait a few seconds for those not in `keep` to exit, and remove the cgroup."""
    limit = time.monotonic() + _EMPTY_S
    while {*members(path)} - {*keep} and time.monotonic() < limit:
        try:
            with open(os.path.join(path, "cgroup.kill"), "w", encoding="ascii") as file:  # Linux 5.14
                file.write("1")
        except OSError:
            for pid in members(path):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        os.rmdir(path)
