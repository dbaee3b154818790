"""RDMA devices: InfiniBand, RoCE and EFA ports with their state, rate and GID table."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from ..named_tuple import NamedTuple
from . import pci_tree
from .sources import Tree

_IB = "/sys/class/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
_FILES = "/dev/infiniband"
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


class Gid(NamedTuple):
    """One entry of a port's GID table."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    gid: str
    version: int
    """0: InfiniBand; 1: RoCE v1, which is not routable; 2: RoCE v2."""

    netdev: str = ""

    @property
    def ipv4(self) -> Optional[str]:
        """The IPv4 address that the GID maps; None if it does not map one."""
        import ipaddress

        mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        return str(mapped) if mapped else None


class Hca(NamedTuple):
    """One port of an RDMA device."""

    name: str
    port: int
    kind: str
    """InfiniBand, RoCE or EFA."""

    state: str
    """ACTIVE, DOWN, INIT or ARMED, as set by the subnet manager or the driver."""

    rate_gbps: float
    netdev: str = ""
    """The Ethernet interface of a RoCE port."""

    driver: str = ""
    firmware: str = ""
    numa: Optional[int] = None
    place: str = ""
    gids: Sequence[Gid] = ()

    @property
    def active(self) -> bool:
        """Whether the link is up."""
        return self.state == "ACTIVE"

    @property
    def id(self) -> str:
        """The port's name in NCCL and UCX: `mlx5_0:1`."""
        return f"{self.name}:{self.port}"


def hcas(tree: Tree, *, gids: int = 16) -> List[Hca]:
    """All ports of all devices in natural order, with the first `gids` entries of each GID table (up to 256).

    A container sees all devices of its host in sysfs. If it has device files, only devices with one are listed.
    """
    files = {tree.text(f"{_VERBS}/{file}/ibdev"): file for file in tree.names(_VERBS) if has_files(tree)}
    names = [name for name in tree.names(_IB) if name not in files or tree.usable(f"{_FILES}/{files[name]}")]
    ports = ((name, port) for name in names for port in tree.names(f"{_IB}/{name}/ports"))
    return [_hca(tree, name, port, gids) for name, port in ports]


def has_files(tree: Tree) -> bool:
    """Whether there are device files, without which no RDMA device can be used."""
    return tree.exists(_FILES)


def _hca(tree: Tree, name: str, port: str, gids: int) -> Hca:
    at = f"{_IB}/{name}/ports/{port}"
    driver = tree.linked(f"{_IB}/{name}/device/driver")
    layer = tree.text(f"{at}/link_layer")
    kind = "EFA" if driver == "efa" else "RoCE" if layer == "Ethernet" else "InfiniBand"
    rate = re.match(r"[\d.]+", tree.text(f"{at}/rate"))
    table = _gids(tree, at, gids, kind) if kind != "EFA" else []
    nets = tree.names(f"{_IB}/{name}/device/net")
    netdev = next((gid.netdev for gid in table if gid.netdev), "") or (
        nets[0] if kind == "RoCE" and len(nets) == 1 else ""
    )
    return Hca(
        name=name,
        port=int(port),
        kind=kind,
        state=tree.text(f"{at}/state").rpartition(": ")[2],
        rate_gbps=float(rate[0]) if rate else 0.0,
        netdev=netdev,
        driver=driver,
        firmware=tree.text(f"{_IB}/{name}/fw_ver"),
        numa=pci_tree.numa(tree, f"{_IB}/{name}/device"),
        place=pci_tree.place(tree, f"{_IB}/{name}/device"),
        gids=table,
    )


def _gids(tree: Tree, at: str, limit: int, kind: str) -> List[Gid]:
    found = []
    for index in range(limit):
        gid = tree.text(f"{at}/gids/{index}")
        if not gid:
            break
        if gid in (_ZERO, "fe80:0000:0000:0000:0000:0000:0000:0000"):
            continue
        said = tree.text(f"{at}/gid_attrs/types/{index}")
        version = 0 if kind == "InfiniBand" else 2 if "v2" in said else 1
        found.append(Gid(index, gid, version, tree.text(f"{at}/gid_attrs/ndevs/{index}")))
    return found
