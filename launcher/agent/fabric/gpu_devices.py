"""NVIDIA and AMD GPUs in one form: from the drivers' files and, on request, from nvidia-smi or rocm-smi."""

from __future__ import annotations

import re
from typing import List, Tuple

from . import amd, nvidia
from .gpu import Gpu
from .sources import Tree


def gpus(tree: Tree, *, full: bool) -> List[Gpu]:
    """The GPUs that this process may use, by their PCI addresses; `full` adds what only the vendor's tool reports."""
    found = nvidia.gpus(tree) or amd.gpus(tree)
    if not full:
        return found
    if found and found[0].vendor == "AMD":
        return amd.with_smi(tree, found)
    return nvidia.with_smi(tree, found)


def nvswitches(tree: Tree) -> int:
    """Number of NVSwitches on the PCI bus; 0 without NVIDIA's driver."""
    if not tree.exists(nvidia.DRIVER):
        return 0
    named = tree.names("/proc/driver/nvidia-nvswitch/devices")
    if named:
        return len(named)
    devices = (f"/sys/bus/pci/devices/{name}" for name in tree.names("/sys/bus/pci/devices"))
    return sum(tree.text(f"{at}/class") == "0x068000" and tree.text(f"{at}/vendor") == "0x10de" for at in devices)


def gpudirect(tree: Tree) -> str:
    """How a NIC can reach GPU memory: `nvidia_peermem`, `dmabuf` or `amdgpu`; empty if it cannot."""
    if tree.exists("/sys/module/nvidia_peermem") or tree.exists("/sys/module/nv_peer_mem"):
        return "nvidia_peermem"
    if "Open Kernel Module" in tree.text(f"{nvidia.DRIVER}/version") and _kernel(tree) >= (5, 12):
        return "dmabuf"
    if tree.exists(amd.KFD) and (tree.exists("/sys/kernel/mm/memory_peers/amdkfd/version") or _kernel(tree) >= (5, 12)):
        return "amdgpu"
    return ""


def _kernel(tree: Tree) -> Tuple[int, ...]:
    version = re.match(r"(\d+)\.(\d+)", tree.text("/proc/sys/kernel/osrelease"))
    return tuple(map(int, version.groups())) if version else (0,)
