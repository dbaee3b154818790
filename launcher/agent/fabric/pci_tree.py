"""How far two devices are from each other, by their places in the PCI tree: the terms are those of `nvidia-smi topo -m`."""

from __future__ import annotations

from typing import List, Optional

from .sources import Tree

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first: one PCIe switch, several switches, one CPU root, one NUMA node, across NUMA nodes."""


def place(tree: Tree, sysfs: str) -> str:
    """The real path of a PCI device, below /sys/devices; empty where it is none (a virtual machine may hide it)."""
    real = tree.real(sysfs)
    return real if "/pci" in real else ""


def numa(tree: Tree, sysfs: str) -> Optional[int]:
    """The NUMA node that a device hangs on; None where the firmware does not say."""
    node = tree.number(f"{sysfs}/numa_node")
    return node if node is not None and node >= 0 else None


def address(path: str) -> str:
    """`0000:1b:00.0` out of a device's path."""
    return path.rpartition("/")[2]


def distance(one: str, other: str, one_numa: Optional[int], other_numa: Optional[int]) -> str:
    """Between two devices with these paths and NUMA nodes; SYS where nothing speaks for less."""
    a, b = _parts(one), _parts(other)
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    if common > 1 and max(len(a), len(b)) - common <= 2:  # what they share is a switch: its ports, then the devices
        return "PIX"
    if common > 1:
        return "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if one_numa is not None and one_numa == other_numa else "SYS"


def _parts(path: str) -> List[str]:
    """`/sys/devices/pci0000:16/0000:16:01.0/...` from the host bridge on."""
    return path[path.index("/pci") + 1 :].split("/") if "/pci" in path else [path]
