"""NVIDIA GPUs, read from the driver's files and from nvidia-smi."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional

from . import pci_tree
from .gpu import Gpu
from .sources import Tree

DRIVER = "/proc/driver/nvidia"
_QUERY = (
    "index,uuid,pci.bus_id,name,memory.total,mig.mode.current,ecc.mode.current,ecc.errors.uncorrected.volatile.total,"
    "temperature.gpu,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
)
NVIDIA_SMI = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")


def gpus(tree: Tree) -> List[Gpu]:
    """All GPUs that the driver's files list and this process may open, numbered as CUDA and NVML number them."""
    said_of_driver = tree.text(f"{DRIVER}/version")
    version = re.search(r"Module(?: for \S+)?\s+(\d[\d.]+)", said_of_driver) if said_of_driver else None
    found = []
    for index, (pci, said) in enumerate(_own(tree).items()):
        at = f"/sys/bus/pci/devices/{pci}"
        found.append(
            Gpu(
                index=index,
                vendor="NVIDIA",
                model=said.get("Model", ""),
                pci=pci,
                uuid=said.get("GPU UUID", ""),
                driver=version[1] if version else "",
                numa=pci_tree.numa(tree, at),
                place=pci_tree.place(tree, at),
            )
        )
    return found


def _own(tree: Tree) -> Dict[str, Dict[str, str]]:
    """What the driver's files say about each GPU, by PCI address.

    They list the whole host, of which a job or container may have a part: then only GPUs whose device it may open.
    """
    found = {
        pci: dict(re.findall(r"^([^:\n]+):\s*(.*?)\s*$", tree.text(f"{DRIVER}/gpus/{pci}/information"), re.MULTILINE))
        for pci in sorted(tree.names(f"{DRIVER}/gpus"))
    }
    own = {pci: said for pci, said in found.items() if tree.usable(f"/dev/nvidia{said.get('Device Minor', '')}")}
    return own or found


def with_smi(tree: Tree, known: List[Gpu]) -> List[Gpu]:
    """What nvidia-smi reports about each GPU, with links and errors; `known` if nvidia-smi is missing or fails."""
    said = tree.run(*NVIDIA_SMI)
    if said is None:
        return known
    import csv  # most starts ask nvidia-smi nothing

    by_pci = {gpu.pci: gpu for gpu in known}
    driver = (
        known[0].driver
        if known
        else (tree.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "")
    )
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
    """`nvidia-smi topo -m`: `gpus` (links of each GPU to the others), `nics` (GPU to NIC), `names` (NIC0 to mlx5_0)."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    header = next((re.findall(r"\b(?:GPU|NIC)\d+\b", line) for line in lines if re.match(r"\s+GPU0\b", line)), [])
    gpus_: Dict[str, Dict[str, str]] = {}
    nics: Dict[str, Dict[str, str]] = {}
    for line in lines:
        words = line.split()
        if not words or not re.match(r"GPU\d+$", words[0]) or len(words) <= len(header):
            continue
        cells = dict(zip(header, words[1:]))
        gpus_[words[0]] = {
            name[3:]: link for name, link in cells.items() if name.startswith("GPU") and name != words[0]
        }
        nics[words[0]] = {name: link for name, link in cells.items() if name.startswith("NIC")}
    return {
        "gpus": gpus_,
        "nics": nics,
        "names": dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines), re.MULTILINE)),
    }


def xid_errors(tree: Tree) -> Dict[str, List[int]]:
    """NVIDIA Xid errors in the kernel log, by PCI address. Needs permission to read /dev/kmsg."""
    log = _kernel_log(tree)
    found: Dict[str, List[int]] = {}
    for pci, number in re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?:\.\d)?\): (\d+)", log):
        found.setdefault(f"{pci.lower()}.0", []).append(int(number))
    return found


def _kernel_log(tree: Tree) -> str:
    """All current records: /dev/kmsg returns one per read, and EAGAIN after the last."""
    parts: List[bytes] = []
    try:
        fd = os.open(tree.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while len(parts) < 100_000:
            try:
                part = os.read(fd, 8192)
            except BrokenPipeError:  # the record was overwritten before it was read
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
    """The MIG devices of each GPU, from `nvidia-smi -L`."""
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
