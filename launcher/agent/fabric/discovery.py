"""The fabric of a node: GPUs, RDMA devices, network interfaces, limits, and the distances between devices.

`read(Tree())` takes a few milliseconds and starts no program; `full=True` also runs nvidia-smi or rocm-smi.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from ..named_tuple import NamedTuple
from ..system.natural_order import natural
from . import gpu_devices, host_limits, nic, pci_tree, rdma
from .gpu import Gpu
from .host_limits import Limits
from .nic import Nic
from .rdma import Hca
from .sources import Tree

FULL_GIDS = 256


class Fabric(NamedTuple):
    """The facts of one node."""

    gpus: List[Gpu]
    nvswitches: int
    gpudirect: str
    """How NICs reach GPU memory: nvidia_peermem, dmabuf or amdgpu; empty if they do not."""

    hcas: List[Hca]
    nics: List[Nic]
    limits: Limits
    gateways: Sequence[str] = ()
    """Interfaces that have a route with a gateway."""

    @property
    def nearest(self) -> Dict[int, Dict[str, str]]:
        """Each GPU's distance to each RDMA device, nearest first."""
        found = {}
        for gpu in self.gpus:
            far = {hca.name: pci_tree.distance(gpu.place, hca.place, gpu.numa, hca.numa) for hca in self.hcas}
            order = sorted(far, key=lambda name: (pci_tree.DISTANCES.index(far[name]), natural(name)))
            found[gpu.index] = {name: far[name] for name in order}
        return found

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON, including the distances from GPUs to HCAs."""
        return {**_plain(self), "nearest": self.nearest}


def read(tree: Tree, *, full: bool = False, open_files: Optional[int] = None) -> Fabric:
    """Read the facts of the host or recording that `tree` represents.

    `open_files`: how many files workers may open, if this process may open more; below 0: any number.
    """
    gpus, limits = gpu_devices.gpus(tree, full=full), host_limits.limits(tree)
    if open_files is not None:
        limits = limits._replace(open_files=open_files if open_files >= 0 else None)
    return Fabric(
        gpus=gpus,
        nvswitches=gpu_devices.nvswitches(tree),
        gpudirect=gpu_devices.gpudirect(tree) if gpus else "",
        hcas=rdma.hcas(tree, gids=FULL_GIDS if full else 16),
        nics=nic.nics(tree),
        limits=limits,
        gateways=_gateways(tree),
    )


def _plain(value: Any) -> Any:
    """Convert named tuples, also inside lists, to dicts."""
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _gateways(tree: Tree) -> List[str]:
    """Interfaces of routes with a gateway, from /proc/net."""
    four = (line.split() for line in tree.text("/proc/net/route").splitlines()[1:])
    six = (line.split() for line in tree.text("/proc/net/ipv6_route").splitlines())
    found = [row[0] for row in four if len(row) > 3 and int(row[3], 16) & 2]
    found += [row[-1] for row in six if len(row) > 9 and int(row[8], 16) & 2]
    return list(dict.fromkeys(found))
