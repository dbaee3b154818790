"""The distance between two devices in the PCI tree, in the terms of `nvidia-smi topo -m`."""

from __future__ import annotations

from typing import List, Optional

from .sources import Tree

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first: one PCIe switch, several switches, one host bridge, one NUMA node, across NUMA nodes."""


def place(tree: Tree, sysfs: str) -> str:
    """The real path of a PCI device below /sys/devices; empty if it is not one (a virtual machine may hide it)."""
    real = tree.real(sysfs)
    return real if "/pci" in real else ""


def numa(tree: Tree, sysfs: str) -> Optional[int]:
    """The NUMA node that a device is attached to; None if the firmware does not report it."""
    node = tree.number(f"{sysfs}/numa_node")
    return node if node is not None and node >= 0 else None


def address(path: str) -> str:
    """The PCI address, such as `0000:1b:00.0`, of a device's path."""
    return path.rpartition("/")[2]


def distance(one: str, other: str, one_numa: Optional[int], other_numa: Optional[int]) -> str:
    """The distance between two devices with these paths and NUMA nodes; SYS if it is not known to be less."""
    a, b = _parts(one), _parts(other)
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    if common > 1 and max(len(a), len(b)) - common <= 2:  # one switch: only its ports and the devices differ
        return "PIX"
    if common > 1:
        return "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if one_numa is not None and one_numa == other_numa else "SYS"


def _parts(path: str) -> List[str]:
    """The components of `/sys/devices/pci0000:16/0000:16:01.0/...`, from the host bridge on."""
    return path[path.index("/pci") + 1 :].split("/") if "/pci" in path else [path]
