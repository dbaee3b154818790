"""AMD GPUs, read from the kernel driver's topology and from rocm-smi."""

from __future__ import annotations

import json
import re
from typing import Dict, List

from ..system.natural_order import natural
from . import pci_tree
from .gpu import Gpu
from .sources import Tree

KFD = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = "11"
ROCM_SMI = (
    "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showbus", "--showuniqueid",
    "--showdriverversion", "--showtopotype", "--json",
)  # fmt: skip


def gpus(tree: Tree) -> List[Gpu]:
    """All GPUs in the kernel driver's topology; a node with SIMD units is a GPU."""
    nodes = {name: _properties(tree, f"{KFD}/{name}/properties") for name in tree.names(KFD)}
    nodes = {name: about for name, about in nodes.items() if about.get("simd_count", "0") != "0"}
    by_address = sorted((_kfd_address(about), name) for name, about in nodes.items())
    index = {name: number for number, (_, name) in enumerate(by_address)}
    found = []
    for number, (pci, name) in enumerate(by_address):
        at = f"/sys/bus/pci/devices/{pci}"
        heaps = _tables(tree, f"{KFD}/{name}/mem_banks")
        memory = sum(int(heap.get("size_in_bytes", "0")) for heap in heaps if heap.get("heap_type") in ("1", "2"))
        links = {
            str(index[link["node_to"]]): "XGMI" if link.get("type") == _XGMI else "PCIe"
            for link in _tables(tree, f"{KFD}/{name}/io_links")
            if link.get("node_to") in index
        }
        version = int(nodes[name].get("gfx_target_version", "0"))
        model = tree.text(f"{at}/product_name") or f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        found.append(
            Gpu(
                index=number,
                vendor="AMD",
                model=model,
                pci=pci,
                numa=pci_tree.numa(tree, at),
                place=pci_tree.place(tree, at),
                uuid=tree.text(f"{at}/unique_id"),
                memory_bytes=memory or None,
                driver=tree.text("/sys/module/amdgpu/version"),
                links=links,
            )
        )
    return found


def _tables(tree: Tree, directory: str) -> List[Dict[str, str]]:
    return [_properties(tree, f"{directory}/{name}/properties") for name in tree.names(directory)]


def _properties(tree: Tree, path: str) -> Dict[str, str]:
    words = (line.split() for line in tree.text(path).splitlines())
    return {pair[0]: pair[1] for pair in words if len(pair) == 2}


def _kfd_address(about: Dict[str, str]) -> str:
    location, domain = int(about.get("location_id", "0")), int(about.get("domain", "0"))
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"


def with_smi(tree: Tree, known: List[Gpu]) -> List[Gpu]:
    """What rocm-smi reports about each GPU; `known` if rocm-smi is missing or fails."""
    try:
        said: Dict[str, Dict[str, str]] = json.loads(tree.run(*ROCM_SMI) or "")
    except ValueError:
        return known
    system = {key.lower(): value for key, value in said.get("system", {}).items()}
    links: Dict[int, Dict[str, str]] = {}
    for key, kind in system.items():
        pair = re.search(r"link type between drm devices (\d+) and (\d+)", key)
        if pair:
            links.setdefault(int(pair[1]), {})[pair[2]] = kind
            links.setdefault(int(pair[2]), {})[pair[1]] = kind
    cards = [
        {key.lower(): value for key, value in said[name].items()}
        for name in sorted(said, key=natural)
        if name != "system"
    ]
    numbers = {card.get("pci bus", "").lower(): number for number, card in enumerate(cards)}
    found = []
    for gpu in known:
        number = numbers.get(gpu.pci)
        if number is None:
            found.append(gpu)
            continue
        card = cards[number]
        memory = card.get("vram total memory (b)", "")
        found.append(
            gpu._replace(
                model=card.get("card series") or gpu.model,
                uuid=card.get("unique id") or gpu.uuid,
                memory_bytes=int(memory) if memory.isdigit() else gpu.memory_bytes,
                driver=system.get("driver version") or gpu.driver,
                links=links.get(number) or gpu.links,
            )
        )
    return found
