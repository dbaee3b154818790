"""Which interfaces of this host libraries and peers use by default, by interface name and by host name."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Sequence, Tuple

from ..network import routes
from .nic import USABLE, Nic


def candidates(nics: Sequence[Nic], named: Sequence[str]) -> Dict[str, str]:
    """Addresses at which peers may find this host, with their interfaces: those of its name, then the likeliest.

    With BGP on the host, its only address may be one of `lo`; what others have, too, is told apart by a token.
    """

    def order(nic: Nic) -> Tuple[int, int]:
        rank = USABLE.index(nic.kind) if nic.kind in USABLE else len(USABLE) + (nic.kind == "loopback")
        return rank, -(nic.speed_mbps or 0)

    own = {
        text.split("/")[0]: nic.name
        for nic in sorted(filter(lambda nic: nic.carries, nics), key=order)
        for text in nic.addresses
    }
    return {**{address: own[address] for address in named if address in own}, **own}


def nccl_interfaces(nics: Sequence[Nic]) -> List[str]:
    """The interfaces NCCL uses by default: `ib*`, else all but docker, lo and virbr, else those; IPv4 before IPv6."""
    up = [nic for nic in nics if nic.up and (nic.addresses or nic.link_local) and nic.kind != "loopback"]
    up.sort(key=lambda nic: not any("." in text for text in nic.addresses))
    names = [nic.name for nic in up]
    infiniband = [name for name in names if name.startswith("ib")]
    plain = [name for name in names if not name.startswith(("docker", "lo", "virbr"))]
    return infiniband or plain or names


def gloo_interface(nics: Sequence[Nic], named: Sequence[str]) -> str:
    """The interface gloo uses by default: that of the first address of our host name, else loopback."""
    own = {text.split("/")[0]: nic.name for nic in nics for text in nic.addresses}
    first = next((address for address in named if address in own or routes.is_loopback(address)), "")
    return own.get(first, "lo")


def nccl_version(directories: Sequence[str]) -> Optional[Tuple[int, ...]]:
    """The version of the NCCL that pip installed in one of these directories; imports nothing."""
    for directory in directories:
        try:
            names = os.listdir(directory or ".")
        except OSError:
            continue
        for name in [name for name in names if name.startswith("nvidia_nccl_cu")]:
            match = re.match(r"nvidia_nccl_cu\d+-(\d+)\.(\d+)\.(\d+)", name)
            if match and name.endswith(".dist-info"):
                return tuple(map(int, match.groups()))
    return None
