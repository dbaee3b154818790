"""GPUs of NVIDIA and AMD in one form: from the drivers' files in any case, from nvidia-smi or rocm-smi where all is asked for."""

from __future__ import annotations

import csv
import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import fabric_pci
from .fabric_tree import Tree, natural

_NVIDIA = "/proc/driver/nvidia"
_KFD = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = "11"
_QUERY = (
    "index,uuid,pci.bus_id,name,memory.total,mig.mode.current,ecc.mode.current,ecc.errors.uncorrected.volatile.total,"
    "temperature.gpu,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
)
NVIDIA_SMI = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
ROCM_SMI = (
    "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showbus", "--showuniqueid",
    "--showdriverversion", "--showtopotype", "--json",
)  # fmt: skip


class Gpu(NamedTuple):
    """One GPU; None and empty where nothing tells it."""

    index: int  # type: ignore[assignment]  # no tuple's method
    vendor: str
    model: str
    pci: str
    numa: Optional[int] = None
    place: str = ""
    uuid: str = ""
    memory_bytes: Optional[int] = None
    driver: str = ""
    mig: Optional[bool] = None
    mig_devices: Sequence[str] = ()
    ecc: Optional[bool] = None
    ecc_uncorrected: Optional[int] = None
    """Since the driver was loaded."""

    xid: Sequence[int] = ()
    """NVIDIA's error numbers in the kernel's log, oldest first."""

    pcie: str = ""
    """`gen 4 of 5, x16 of 16`: what the link has, and could have."""

    links: Mapping[str, str] = {}
    """To other GPUs by index, `NV18`, `XGMI`, or the PCI distance."""


def gpus(tree: Tree, *, full: bool) -> List[Gpu]:
    """All GPUs, in the order of their PCI addresses; `full`: with what only the vendor's tool knows."""
    found = _nvidia(tree) or _amd(tree)
    if not full:
        return found
    if found and found[0].vendor == "AMD":
        return _from_rocm_smi(tree, found)
    return _from_nvidia_smi(tree, found)


def nvswitches(tree: Tree) -> int:
    """NVSwitches on the PCI bus, where the GPUs are NVIDIA's."""
    if not tree.exists(_NVIDIA):
        return 0
    named = tree.names("/proc/driver/nvidia-nvswitch/devices")
    if named:
        return len(named)
    devices = (f"/sys/bus/pci/devices/{name}" for name in tree.names("/sys/bus/pci/devices"))
    return sum(tree.text(f"{at}/class") == "0x068000" and tree.text(f"{at}/vendor") == "0x10de" for at in devices)


def gpudirect(tree: Tree) -> str:
    """How a NIC can reach GPU memory: `nvidia_peermem`, `dmabuf`, `amdgpu`, or empty: not at all."""
    if tree.exists("/sys/module/nvidia_peermem") or tree.exists("/sys/module/nv_peer_mem"):
        return "nvidia_peermem"
    if "Open Kernel Module" in tree.text(f"{_NVIDIA}/version") and _kernel(tree) >= (5, 12):
        return "dmabuf"
    if tree.exists(_KFD) and (tree.exists("/sys/kernel/mm/memory_peers/amdkfd/version") or _kernel(tree) >= (5, 12)):
        return "amdgpu"
    return ""


def _kernel(tree: Tree) -> Tuple[int, ...]:
    version = re.match(r"(\d+)\.(\d+)", tree.text("/proc/sys/kernel/osrelease"))
    return tuple(map(int, version.groups())) if version else (0,)


# -- NVIDIA -----------------------------------------------------------------------------------------------------------


def _nvidia(tree: Tree) -> List[Gpu]:
    version = re.search(r"Module(?: for \S+)?\s+(\d[\d.]+)", tree.text(f"{_NVIDIA}/version"))
    found = []
    for index, pci in enumerate(sorted(tree.names(f"{_NVIDIA}/gpus"))):
        said = dict(re.findall(r"^([^:\n]+):\s*(.*?)\s*$", tree.text(f"{_NVIDIA}/gpus/{pci}/information"), re.MULTILINE))
        at = f"/sys/bus/pci/devices/{pci}"
        found.append(
            Gpu(
                index=index,
                vendor="NVIDIA",
                model=said.get("Model", ""),
                pci=pci,
                uuid=said.get("GPU UUID", ""),
                driver=version[1] if version else "",
                numa=fabric_pci.numa(tree, at),
                place=fabric_pci.place(tree, at),
            )
        )
    return found


def _from_nvidia_smi(tree: Tree, known: List[Gpu]) -> List[Gpu]:
    """What nvidia-smi says of each, with links and errors; `known` stays as it is where there is no nvidia-smi."""
    said = tree.run(*NVIDIA_SMI)
    if said is None:
        return known
    by_pci = {gpu.pci: gpu for gpu in known}
    driver = known[0].driver if known else (tree.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "")
    links = topology(tree.run("nvidia-smi", "topo", "-m") or "")["gpus"]
    mig = _mig_devices(tree.run("nvidia-smi", "-L") or "")
    xid = xid_errors(tree)
    found = []
    for row in csv.reader(said.splitlines(), skipinitialspace=True):
        if len(row) != _QUERY.count(",") + 1:
            continue
        index, uuid, bus, name, memory, mig_mode, ecc, errors, _, *pcie = row
        pci = pci_address(bus)
        memory_mib = _whole(memory)
        found.append(
            by_pci.get(pci, Gpu(index=0, vendor="NVIDIA", model=name, pci=pci))._replace(
                index=int(index),
                model=name,
                uuid=uuid,
                driver=driver.split("\n")[0].strip(),
                memory_bytes=memory_mib * 2**20 if memory_mib is not None else None,
                mig=_enabled(mig_mode),
                mig_devices=mig.get(int(index), []),
                ecc=_enabled(ecc),
                ecc_uncorrected=_whole(errors),
                xid=xid.get(pci, []),
                pcie="gen {} of {}, x{} of {}".format(*pcie),
                links=links.get(f"GPU{index}", {}),
            )
        )
    return found


def pci_address(bus: str) -> str:
    """`0000:1b:00.0` for nvidia-smi's `00000000:1B:00.0`."""
    domain, _, rest = bus.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def topology(text: str) -> Dict[str, Any]:
    """`nvidia-smi topo -m`: `gpus` (each GPU's links to the others), `nics` (GPU to NIC) and `names` (NIC0 to mlx5_0)."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    header = next((re.findall(r"\b(?:GPU|NIC)\d+\b", line) for line in lines if re.match(r"\s+GPU0\b", line)), [])
    gpus_: Dict[str, Dict[str, str]] = {}
    nics: Dict[str, Dict[str, str]] = {}
    for line in lines:
        words = line.split()
        if not words or not re.match(r"GPU\d+$", words[0]) or len(words) <= len(header):
            continue
        cells = dict(zip(header, words[1:]))
        gpus_[words[0]] = {name[3:]: link for name, link in cells.items() if name.startswith("GPU") and name != words[0]}
        nics[words[0]] = {name: link for name, link in cells.items() if name.startswith("NIC")}
    return {"gpus": gpus_, "nics": nics, "names": dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines), re.MULTILINE))}


def xid_errors(tree: Tree) -> Dict[str, List[int]]:
    """NVIDIA's Xid errors in the kernel's log, by PCI address. Needs the right to read /dev/kmsg."""
    log = _kernel_log(tree)
    found: Dict[str, List[int]] = {}
    for pci, number in re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?:\.\d)?\): (\d+)", log):
        found.setdefault(f"{pci.lower()}.0", []).append(int(number))
    return found


def _kernel_log(tree: Tree) -> str:
    """All records that are there now: /dev/kmsg gives one per read, and EAGAIN after the last."""
    parts: List[bytes] = []
    try:
        fd = os.open(tree.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while len(parts) < 100_000:
            try:
                part = os.read(fd, 8192)
            except BrokenPipeError:  # the record was overwritten before we came to it
                continue
            if not part:
                break
            parts.append(part)
    except OSError:
        pass
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")


def _mig_devices(text: str) -> Dict[int, List[str]]:
    """`nvidia-smi -L`: the MIG devices below each GPU."""
    found: Dict[int, List[str]] = {}
    current = -1
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        device = re.match(r"\s+MIG (\S+)\s.*UUID: ([^)\s]+)", line)
        if gpu:
            current = int(gpu[1])
        elif device:
            found.setdefault(current, []).append(f"{device[1]} {device[2]}")
    return found


def _whole(text: str) -> Optional[int]:
    return int(text) if text.strip().isdigit() else None  # else [N/A], [Not Supported], [Unknown Error]


def _enabled(text: str) -> Optional[bool]:
    return {"Enabled": True, "Disabled": False}.get(text.strip())


# -- AMD --------------------------------------------------------------------------------------------------------------


def _amd(tree: Tree) -> List[Gpu]:
    """From the kernel driver's own topology; a node with SIMD units is a GPU."""
    nodes = {name: _properties(tree, f"{_KFD}/{name}/properties") for name in tree.names(_KFD)}
    nodes = {name: about for name, about in nodes.items() if about.get("simd_count", "0") != "0"}
    by_address = sorted((_kfd_address(about), name) for name, about in nodes.items())
    index = {name: number for number, (_, name) in enumerate(by_address)}
    found = []
    for number, (pci, name) in enumerate(by_address):
        at = f"/sys/bus/pci/devices/{pci}"
        heaps = _tables(tree, f"{_KFD}/{name}/mem_banks")
        memory = sum(int(heap.get("size_in_bytes", "0")) for heap in heaps if heap.get("heap_type") in ("1", "2"))
        links = {
            str(index[link["node_to"]]): "XGMI" if link.get("type") == _XGMI else "PCIe"
            for link in _tables(tree, f"{_KFD}/{name}/io_links")
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
                numa=fabric_pci.numa(tree, at),
                place=fabric_pci.place(tree, at),
                uuid=tree.text(f"{at}/unique_id"),
                memory_bytes=memory or None,
                driver=tree.text("/sys/module/amdgpu/version"),
                links=links,
            )
        )
    return found


def _tables(tree: Tree, folder: str) -> List[Dict[str, str]]:
    return [_properties(tree, f"{folder}/{name}/properties") for name in tree.names(folder)]


def _properties(tree: Tree, path: str) -> Dict[str, str]:
    words = (line.split() for line in tree.text(path).splitlines())
    return {pair[0]: pair[1] for pair in words if len(pair) == 2}


def _kfd_address(about: Dict[str, str]) -> str:
    location, domain = int(about.get("location_id", "0")), int(about.get("domain", "0"))
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"


def _from_rocm_smi(tree: Tree, known: List[Gpu]) -> List[Gpu]:
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
    cards = [{key.lower(): value for key, value in said[name].items()} for name in sorted(said, key=natural) if name != "system"]
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
