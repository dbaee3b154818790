"""Limits of a job on this host (locked memory, shared memory, huge pages, cgroup), and what kind of host it is."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Tuple

from ..named_tuple import NamedTuple
from .sources import Tree

_CGROUP = "/sys/fs/cgroup"
_HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB"


class Limits(NamedTuple):
    """Limits and kind of the host; None means no limit, or unknown because a file is missing."""

    memlock_bytes: Optional[int]
    open_files: Optional[int]
    shm_bytes: Optional[int]
    shm_free_bytes: Optional[int]
    huge_pages: int
    huge_pages_free: int
    memory_bytes: Optional[int]
    """The cgroup's limit."""

    cpus: Optional[float]
    """The cgroup's quota."""

    pids: Optional[int]
    kernel: str
    container: str
    """docker, podman, kubernetes, apptainer or lxc; empty if none."""

    machine: str
    """Vendor and product as the firmware reports them: `Amazon EC2 p5.48xlarge`, `NVIDIA DGXH100`."""

    virtual: bool


def limits(tree: Tree) -> Limits:
    """Read all limits."""
    soft = _soft_limits(tree.text("/proc/self/limits"))
    shm, shm_free = _shm(tree)
    group = _cgroup(tree)
    return Limits(
        memlock_bytes=soft.get("Max locked memory"),
        open_files=soft.get("Max open files"),
        shm_bytes=shm,
        shm_free_bytes=shm_free,
        huge_pages=tree.number(f"{_HUGE}/nr_hugepages") or 0,
        huge_pages_free=tree.number(f"{_HUGE}/free_hugepages") or 0,
        memory_bytes=_least(tree, group, "memory.max"),
        cpus=_quota(tree, group),
        pids=_least(tree, group, "pids.max"),
        kernel=tree.text("/proc/sys/kernel/osrelease"),
        container=_container(tree),
        machine=" ".join(
            filter(None, (tree.text(f"/sys/class/dmi/id/{key}") for key in ("sys_vendor", "product_name")))
        ),
        virtual=_virtual(tree.text("/proc/cpuinfo")),
    )


def _soft_limits(text: str) -> Dict[str, Optional[int]]:
    """The first number of each line like `Max locked memory  65536  65536  bytes`; None for unlimited."""
    rows = (line.partition("  ") for line in text.splitlines() if line.startswith("Max "))
    values = {name: values.split()[0] for name, _, values in rows if values.strip()}
    return {name: int(value) if value.isdigit() else None for name, value in values.items()}


def _virtual(cpuinfo: str) -> bool:
    """Whether the first CPU reports that a hypervisor runs it."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def _shm(tree: Tree) -> Tuple[Optional[int], Optional[int]]:
    """Size and free bytes of /dev/shm; from the mount options if the tree is a recording."""
    if tree.live:
        try:
            told = os.statvfs("/dev/shm")  # noqa: S108 - only its size is read
        except OSError:
            return None, None
        return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize
    mount = re.search(r"^\S+ /dev/shm \S+ (\S+)", tree.text("/proc/mounts"), re.MULTILINE)
    size = re.search(r"\bsize=(\d+)k", mount[1]) if mount else None
    return (int(size[1]) * 1024 if size else None), None


def _cgroup(tree: Tree) -> str:
    """Our cgroup below /sys/fs/cgroup (version 2); empty for the root, which a container sees as its own."""
    lines = tree.text("/proc/self/cgroup").splitlines()
    return next((line[3:].rstrip("/") for line in lines if line.startswith("0::/")), "")


def _values(tree: Tree, group: str, name: str) -> List[str]:
    """The file's content in our cgroup and in all its ancestors."""
    found = []
    while True:
        found.append(tree.text(f"{_CGROUP}{group}/{name}"))
        if not group:
            return found
        group = group.rpartition("/")[0]


def _least(tree: Tree, group: str, name: str) -> Optional[int]:
    return min((int(value) for value in _values(tree, group, name) if value.isdigit()), default=None)


def _quota(tree: Tree, group: str) -> Optional[float]:
    pairs = (value.split() for value in _values(tree, group, "cpu.max"))
    return min((int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()), default=None)


def _container(tree: Tree) -> str:
    signs = {
        "kubernetes": "/var/run/secrets/kubernetes.io",
        "podman": "/run/.containerenv",
        "docker": "/.dockerenv",
        "apptainer": "/.singularity.d",
        "lxc": "/dev/lxd",
    }
    return next((name for name, path in signs.items() if tree.exists(path)), "")
