"""Where each worker of a node is placed: its CPUs, its GPU, its RDMA ports."""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Optional, Sequence

from ..system import nvml
from ..system.facts import gpus
from ..system.folding import ranges
from . import discovery, gpu_devices, network_variables, numa, pci_tree, rdma
from .gpu import Gpu
from .sources import Tree

_PORTS = ("NCCL_IB_HCA", "UCX_NET_DEVICES")


def processors(mode: str, workers: int) -> List[str]:
    """The CPUs of each of this node's workers, in the form `0-3,8`."""
    tree = Tree()
    places = [gpu.numa if gpu else None for gpu in _known(gpus(os.environ), gpu_devices.gpus(tree, full=False))]
    return [ranges(cpus) for cpus in numa.bindings(mode, workers, places, os.sched_getaffinity(0), tree)]


def _known(names: Sequence[str], known: Sequence[Gpu]) -> List[Optional[Gpu]]:
    """The GPUs with these names, as `facts.gpus` returns them; None for one that the host does not list."""
    return [_called(name, known) for name in names]


def _called(name: str, known: Sequence[Gpu]) -> Optional[Gpu]:
    """The GPU with that number or UUID, which may be abbreviated, or the one that the MIG instance is a part of."""
    if name.isdigit():
        return next((gpu for gpu in known if gpu.index == int(name)), None)
    uuid = nvml.gpu_of(name) if name.startswith("MIG-") else name  # if that is unknown, all GPUs match, or the only one
    found = [gpu for gpu in known if _bare(gpu.uuid).startswith(_bare(uuid))]
    return found[0] if len(found) == 1 else None


def _bare(uuid: str) -> str:
    """A UUID without `GPU-`, which the amdgpu driver leaves out."""
    return uuid.lower().removeprefix("gpu-")


def own_gpu(local_rank: int) -> Dict[str, str]:
    """Variables that let a worker see only its own GPU, by torchrun's rules (local_elastic_agent.py).

    Raises `ValueError` if it has none.
    """
    name = "HIP_VISIBLE_DEVICES" if os.environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    given = os.environ.get(name)
    visible = [str(local_rank)] * (local_rank + 1) if given is None else given.split(",")
    if local_rank >= len(visible):
        raise ValueError(f"--virtual-local-rank: local rank {local_rank} has no GPU in {name}={given}")
    own = visible[local_rank].strip()
    return {"CUDA_VISIBLE_DEVICES": own, **({name: own} if name[0] == "H" else {})}


def near_ports(
    workers: int, names: Sequence[str], env: Mapping[str, str], tree: Optional[Tree] = None
) -> List[Dict[str, str]]:
    """Variables that limit each local rank to the RDMA ports nearest to its GPU, except those that are set already.

    The ports are among those of `network_variables.compute_ports`, named like `mlx5_0:1`. A worker gets no variables if
    its GPU is unknown, or equally far from all of them, nor with EFA, whose devices are chosen by libfabric.

    Args:
        workers: number of workers.
        names: the GPUs that they see, in their order, as `facts.gpus` returns them.
        env: the workers' environment.
        tree: the host; by default, this one.
    """
    tree = tree or Tree()
    found = discovery.read(tree)
    known = {each.name: each.value for each in network_variables.given(env, {}, tree)}
    ports = [port for port in network_variables.usable_ports(found, known, tree) if port.kind != "EFA"]
    mine = _known(names, found.gpus)
    near = [_nearest(found, ports, mine[rank % len(mine)]) if mine else [] for rank in range(workers)]
    values = [("=" + ",".join(own), ",".join(own)) if own else () for own in near]
    return [{name: value for name, value in zip(_PORTS, each) if name not in known} for each in values]


def _nearest(found: discovery.Fabric, ports: Sequence[rdma.Hca], gpu: Optional[Gpu]) -> List[str]:
    """The ids of the ports nearest to the GPU; empty if that is all of them."""
    far = found.nearest[gpu.index] if gpu else {}
    distances = {port.id: pci_tree.DISTANCES.index(far[port.name]) for port in ports if port.name in far}
    near = [port for port, distance in distances.items() if distance == min(distances.values())]
    return near if len(near) < len(ports) else []
