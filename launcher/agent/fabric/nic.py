"""Network interfaces: their kind, speed, MTU and addresses."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import sys
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ..named_tuple import NamedTuple
from ..network import netlink, routes
from . import pci_tree
from .sources import Tree

_NET = "/sys/class/net"
_CONTAINERS = (
    r"docker\d*$|docker_gwbridge$|br-[0-9a-f]{12}$|podman\d|cni\d|cni-|lxcbr|lxdbr|virbr"
    r"|kube-bridge|weave|flannel|cali|cilium"
)
_FIRST_OF_CONTAINERS = tuple("dbpclvkwf")
"""With these letters such a name begins; others need no pattern, which takes 1 ms to compile."""

_VPN = r"tun\d|tap\d|wg\d|tailscale|zt[a-z0-9]{8}|ppp\d|utun|nebula|gpd\d|cscotun|vpn"
_LOOPBACK = 772
_ARPHRD = {32: "ipoib", 512: "vpn", 65534: "vpn", 768: "tunnel", 776: "tunnel", 778: "tunnel"}
_KINDS = {
    "bridge": "bridge", "openvswitch": "bridge", "bond": "bond", "team": "bond", "veth": "veth", "vlan": "vlan",
    "ipoib": "ipoib", "macvlan": "macvlan", "ipvlan": "macvlan", "wlan": "wireless", "wwan": "wireless",
    "tun": "vpn", "wireguard": "vpn", "ppp": "vpn", "vxlan": "tunnel", "geneve": "tunnel", "gretap": "tunnel",
    "gre": "tunnel", "ipip": "tunnel", "sit": "tunnel", "ip6tnl": "tunnel",
}  # fmt: skip

USABLE = ("physical", "bond", "ipoib", "vlan", "bridge", "macvlan", "veth", "wireless", "other")
"""Kinds that may lead to another node, likeliest first; `container`, `vpn`, `tunnel` and `loopback` come last."""


class Nic(NamedTuple):
    """One interface."""

    name: str
    kind: str
    """One of `USABLE`, or container (a bridge of Docker or similar), vpn, tunnel or loopback."""

    up: bool
    mtu: int
    speed_mbps: Optional[int] = None
    driver: str = ""
    numa: Optional[int] = None
    master: str = ""
    """The bond or bridge that it belongs to."""

    addresses: Sequence[str] = ()
    """With prefix length (`10.0.0.1/24`), without loopback and link-local addresses."""

    link_local: bool = False
    """Whether it has a link-local address, which NCCL uses like any other."""

    @property
    def carries(self) -> bool:
        """Whether it is up, and has an address at which others may reach it."""
        return self.up and bool(self.addresses)


class _Link(NamedTuple):
    """An interface before its device is looked up in sysfs."""

    name: str
    number: int
    arphrd: int
    up: bool
    mtu: int
    master: str
    said: str
    """The kind that the kernel reports: bridge, bond, veth, vlan, tun, wireguard, ...; empty for a device."""


def nics(tree: Tree) -> List[Nic]:
    """All interfaces by index, which is the order in which getifaddrs(3) returns their addresses."""
    every = _every(tree)
    has, local = _kept(every), {name for name, text in every if routes.is_link_local(text.partition("/")[0])}
    links = sorted(_links(tree), key=lambda link: link.number)
    return [_nic(tree, link, has.get(link.name, []), link.name in local) for link in links]


def _nic(tree: Tree, link: _Link, has: List[str], local: bool) -> Nic:
    # /sys may show another network namespace, with other interfaces of the same names.
    at = f"{_NET}/{link.name}" if tree.number(f"{_NET}/{link.name}/ifindex") == link.number else "/nowhere"
    speed = tree.number(f"{at}/speed")
    return Nic(
        name=link.name,
        kind=kind(tree, link, at),
        up=link.up,
        mtu=link.mtu,
        speed_mbps=speed if speed is not None and 0 < speed < 2**31 - 1 else None,
        driver=tree.linked(f"{at}/device/driver"),
        numa=pci_tree.numa(tree, f"{at}/device"),
        master=link.master,
        addresses=has,
        link_local=local,
    )


def kind(tree: Tree, link: _Link, at: str) -> str:
    """The kind of an interface as the kernel reports it; by name only where several programs create the same kind."""
    if link.arphrd == _LOOPBACK:
        return "loopback"
    # A tun that has a master is the tap of a virtual machine.
    named = link.name.startswith(_FIRST_OF_CONTAINERS) and re.match(_CONTAINERS, link.name)
    if named or (link.said == "tun" and link.master):
        return "container"
    if tree.exists(f"{at}/phy80211"):
        return "wireless"
    said = _KINDS.get(link.said) or _ARPHRD.get(link.arphrd)
    if said or tree.exists(f"{at}/device"):
        return said or "physical"
    return "vpn" if re.match(_VPN, link.name) else "other"


def _links(tree: Tree) -> List[_Link]:
    if tree.live:
        with contextlib.suppress(OSError):  # a sandbox without netlink
            return list(_links_from_kernel())
    names = [name for name in tree.names(_NET) if tree.exists(f"{_NET}/{name}/type")]  # not bonding_masters
    return [_link(tree, name) for name in names]


def _link(tree: Tree, name: str) -> _Link:
    """An interface as sysfs describes it."""
    at = f"{_NET}/{name}"
    state = tree.text(f"{at}/operstate")
    devtype = re.search(r"^DEVTYPE=(\w+)", tree.text(f"{at}/uevent"), re.MULTILINE)
    signs = {"bridge": "bridge", "bonding": "bond", "tun_flags": "tun"}
    said = next(
        (meaning for sign, meaning in signs.items() if tree.exists(f"{at}/{sign}")), devtype[1] if devtype else ""
    )
    if (
        not said
        and not tree.exists(f"{at}/device")
        and tree.text(f"{at}/iflink") not in ("", tree.text(f"{at}/ifindex"))
    ):
        said = "veth"  # the only kind with a peer that sysfs does not name
    return _Link(
        name=name,
        number=tree.number(f"{at}/ifindex") or 0,
        arphrd=tree.number(f"{at}/type") or 0,
        up=state == "up" or (state == "unknown" and tree.text(f"{at}/carrier") == "1"),
        mtu=tree.number(f"{at}/mtu") or 0,
        master=tree.linked(f"{at}/master"),
        said=said,
    )


def addresses(tree: Tree) -> Dict[str, List[str]]:
    """The addresses of each interface, without loopback and link-local ones; IPv4 first."""
    return _kept(_every(tree))


def _every(tree: Tree) -> List[Tuple[str, str]]:
    """Interface and `address/prefix` of all addresses, in the kernel's order: IPv4 by interface, then IPv6."""
    if not tree.live:  # the output of `ip -json address` was recorded with the tree
        links = json.loads(tree.run("ip", "-json", "address") or "[]")
        infos = [(link["ifname"], info) for link in links for info in link["addr_info"]]
        infos.sort(key=lambda pair: str(pair[1]["family"]))
        return [(name, f"{info['local']}/{info['prefixlen']}") for name, info in infos]
    try:
        return list(netlink.addresses())
    except OSError:  # a sandbox without netlink
        own = routes.own_addresses().items()
        return [(name, f"{ip}/{128 if ':' in ip else 32}") for name, ips in own for ip in ips]


def _kept(found: List[Tuple[str, str]]) -> Dict[str, List[str]]:
    kept: Dict[str, List[str]] = {}
    for name, text in found:
        if routes.leads_out(text.partition("/")[0]):
            kept.setdefault(name, []).append(text)
    return kept


_RUNNING = 0x41  # IFF_UP, IFF_RUNNING
_IFNAME, _MTU, _MASTER, _LINKINFO, _INFO_KIND = 3, 4, 10, 18, 1


def _links_from_kernel() -> Iterator[_Link]:
    found = []
    for body in netlink.dump(netlink.GETLINK, netlink.NEWLINK):
        arphrd, index, flags = struct.unpack_from("=2xHiI", body)
        has = netlink.attributes(body[16:])
        found.append((index, arphrd, flags, has, has.get(_IFNAME, b"").rstrip(b"\0").decode(errors="replace")))
    names = {index: name for index, _, _, _, name in found}
    for index, arphrd, flags, has, name in found:
        said = netlink.attributes(has.get(_LINKINFO, b"")).get(_INFO_KIND, b"").rstrip(b"\0").decode(errors="replace")
        mtu, master = (int.from_bytes(has.get(key, b""), sys.byteorder) for key in (_MTU, _MASTER))
        yield _Link(name, index, arphrd, flags & _RUNNING == _RUNNING, mtu, names.get(master, ""), said)
