"""Which CPUs each worker of a node is bound to: those near its GPU, by torchrun's four modes (torch/numa/binding.py).

Without GPUs, which torchrun refuses, workers are spread over the NUMA nodes in the order of their local ranks.
"""

from __future__ import annotations

from typing import Callable, Collection, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence

from .sources import Tree

MODES = ("node", "socket", "exclusive", "core-complex")
_CPU = "/sys/devices/system/cpu/cpu"
_NODE = "/sys/devices/system/node"


def bindings(
    mode: str, workers: int, gpu_nodes: Sequence[Optional[int]], allowed: Collection[int], tree: Tree
) -> List[FrozenSet[int]]:
    """The CPUs of each local rank; raises `ValueError` if a rank has none.

    Args:
        mode: one of `MODES`.
        gpu_nodes: NUMA node of each GPU that workers see, in their order; None if it is unknown, which spreads its
            workers over the nodes. May be empty.
        allowed: the CPUs that this node of the run may use.
    """
    nodes = _nodes(tree, allowed)
    places = _places(workers, gpu_nodes, nodes)
    found = []
    for rank, place in enumerate(places):
        beside = [other for other in range(workers) if places[other] == place]
        processors = _MODES[mode](tree, nodes, place, beside.index(rank), len(beside))
        if not processors:
            raise ValueError(f"local rank {rank} has no CPU on NUMA node {place}: {len(beside)} workers are there")
        found.append(frozenset(processors))
    return found


def _places(workers: int, gpu_nodes: Sequence[Optional[int]], nodes: Mapping[int, Collection[int]]) -> List[int]:
    """The NUMA node of each local rank."""
    known = sorted(nodes)
    spread = [known[rank * len(known) // workers] for rank in range(workers)]
    given = [gpu_nodes[rank % len(gpu_nodes)] if gpu_nodes else None for rank in range(workers)]
    return [spread[rank] if node is None else node for rank, node in enumerate(given)]


def _nodes(tree: Tree, allowed: Collection[int]) -> Dict[int, FrozenSet[int]]:
    """The allowed CPUs of each NUMA node; a host that lists no nodes counts as one."""
    names = [name for name in tree.names(_NODE) if name.startswith("node") and name[4:].isdigit()]
    found = {
        int(name[4:]): frozenset(numbers(tree.text(f"{_NODE}/{name}/cpulist"))) & frozenset(allowed) for name in names
    }
    return {node: processors for node, processors in found.items() if processors} or {0: frozenset(allowed)}


def _node(_tree: Tree, nodes: Mapping[int, FrozenSet[int]], place: int, _index: int, _count: int) -> Iterable[int]:
    return nodes.get(place, ())


def _socket(tree: Tree, nodes: Mapping[int, FrozenSet[int]], place: int, _index: int, _count: int) -> Iterable[int]:
    sockets = {
        node: tree.number(f"{_CPU}{min(processors)}/topology/physical_package_id") for node, processors in nodes.items()
    }
    if place not in nodes:
        return ()
    return [cpu for node, processors in nodes.items() if sockets[node] == sockets[place] for cpu in processors]


def _exclusive(tree: Tree, nodes: Mapping[int, FrozenSet[int]], place: int, index: int, count: int) -> Iterable[int]:
    """An equal share of the node's cores, with all their hardware threads; the first workers share the remainder."""
    cores = _grouped(
        nodes.get(place, ()), lambda cpu: min(numbers(tree.text(f"{_CPU}{cpu}/topology/thread_siblings_list")) or [cpu])
    )
    each, more = divmod(len(cores), count)
    first = index * each + min(index, more)
    ordered = [cores[core] for core in sorted(cores)]
    return [cpu for core in ordered[first : first + each + (index < more)] for cpu in core]


def _core_complex(
    tree: Tree, nodes: Mapping[int, FrozenSet[int]], place: int, index: int, _count: int
) -> Iterable[int]:
    """One group of CPUs that share a last-level cache; groups with more allowed CPUs come first."""
    groups = _grouped(nodes.get(place, ()), lambda cpu: _last_cache(tree, cpu))
    ordered = sorted(groups, key=lambda first: (-len(groups[first]), first))
    return groups[ordered[index % len(ordered)]] if ordered else ()


_MODES: Dict[str, Callable[[Tree, Mapping[int, FrozenSet[int]], int, int, int], Iterable[int]]] = {
    "node": _node, "socket": _socket, "exclusive": _exclusive, "core-complex": _core_complex,
}  # fmt: skip


def _last_cache(tree: Tree, cpu: int) -> int:
    """The first of the CPUs that share this CPU's last-level cache."""
    directory = f"{_CPU}{cpu}/cache"
    levels = {
        tree.number(f"{directory}/{name}/level") or 0: name
        for name in tree.names(directory)
        if name.startswith("index") and tree.text(f"{directory}/{name}/type") in ("Unified", "Data")
    }
    return min(numbers(tree.text(f"{directory}/{levels[max(levels)]}/shared_cpu_list")) or [cpu]) if levels else cpu


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> Dict[int, List[int]]:
    found: Dict[int, List[int]] = {}
    for cpu in sorted(cpus):
        found.setdefault(key(cpu), []).append(cpu)
    return found


def numbers(text: str) -> List[int]:
    """The numbers in a list as the kernel writes it: 0, 1, 2, 4 for `0-2,4`."""
    found: List[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
