"""The link rate that bounds busbw, as the host's hardware reports it, and the host of each rank."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from typing import NamedTuple

import torch
import torch.distributed as dist

SYS = "/sys/class"
"""Where the kernel describes devices."""

_BY_RDMA = ("nccl", "mpi")
"""The backends that may use RDMA."""


class Limit(NamedTuple):
    """The rate that no measurement should exceed."""

    gbytes_per_s: float
    what: str


def hosts() -> list[str]:
    """The name and boot id of each rank's host; the boot id tells hosts of the same name apart."""
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, f"{socket.gethostname()} {_text('/proc/sys/kernel/random/boot_id')}")
    return found


def limit(device: torch.device, backend: str, spans_hosts: bool) -> Limit | None:
    """NVLink within a host of GPUs, RDMA ports or Ethernet between hosts; None if no rate is reported."""
    if spans_hosts:
        return (_rdma() if backend in _BY_RDMA else None) or _ethernet()
    return _nvlink() if device.type == "cuda" else None


def _nvlink() -> Limit | None:
    """The summed rate of one GPU's NVLinks, in one direction."""
    said = _run("nvidia-smi", "nvlink", "-s", "-i", "0")
    rates = [float(rate) for rate in re.findall(r"Link \d+: ([\d.]+) GB/s", said)]
    return Limit(sum(rates), f"{len(rates)} NVLinks") if rates else None


def _rdma() -> Limit | None:
    rates = []
    for name in _names(f"{SYS}/infiniband"):
        for port in _names(f"{SYS}/infiniband/{name}/ports"):
            at = f"{SYS}/infiniband/{name}/ports/{port}"
            rate = re.match(r"[\d.]+", _text(f"{at}/rate"))
            if rate and "ACTIVE" in _text(f"{at}/state"):
                rates.append(float(rate[0]))
    fastest = [rate for rate in rates if rate == max(rates)]
    return Limit(sum(fastest) / 8, f"{len(fastest)} x {fastest[0]:g} Gb/s RDMA") if fastest else None


def _ethernet() -> Limit | None:
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or _towards(os.environ.get("MASTER_ADDR", ""))
    speed = _text(f"{SYS}/net/{name}/speed") if name else ""
    if not speed.isdigit() or not name or not _has_hardware(name):
        return None
    return Limit(int(speed) / 8000, f"{name}, {int(speed) / 1000:g} Gb/s")


def _has_hardware(name: str) -> bool:
    """Whether it is a device, or a bond, VLAN or bridge of one; a veth reports 10 Gb/s, which means nothing."""
    at = f"{SYS}/net/{name}"
    below = [each.removeprefix("lower_") for each in _names(at) if each.startswith("lower_")]
    return os.path.exists(f"{at}/device") or any(map(_has_hardware, below))


def _towards(address: str) -> str | None:
    """The interface through which packets to the master leave."""
    try:
        info = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as sock:
            sock.connect(info[4])  # looks up the route; sends nothing
            own = sock.getsockname()[0]
    except OSError:
        return None
    said = _run("ip", "-o", "address")
    found = re.search(rf"^\d+: (\S+)\s+inet6? {re.escape(own)}/", said, re.MULTILINE)
    return found[1] if found else None


def _run(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
