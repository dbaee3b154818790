"""Addresses as they are observed: those of this host, those that a peer reaches, and the interfaces in use."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    import ipaddress

_SIOCGIFADDR = 0x8915
_CONNECT_S = 2.0


def own_addresses() -> Dict[str, List[str]]:
    """The addresses of each interface that is not loopback: IPv4, then global IPv6."""
    found: Dict[str, List[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                packed = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.setdefault(name, []).append(socket.inet_ntoa(packed[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            packed_hex, _, _, scope, _, name = line.split()
            if scope == "00":  # global
                found.setdefault(name, []).append(str(_parsed(bytes.fromhex(packed_hex))))
    return {name: kept for name, all_ in found.items() if (kept := [a for a in all_ if not _is_loopback(a)])}


def resolved(name: str) -> List[str]:
    """The addresses of a host name, in the resolver's order; empty if it has none."""
    with contextlib.suppress(OSError, UnicodeError):  # UnicodeError: not a host name
        return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    return []


def candidates(name: str) -> List[str]:
    """Addresses at which peers may reach this host, best first: those its name resolves to, then all others."""
    own = [address for addresses in own_addresses().values() for address in addresses]
    wanted = [address for address in resolved(name) if address in own] + own
    return list(dict.fromkeys(wanted)) or ["127.0.0.1"]


def is_address(text: str) -> bool:
    """Whether the text is an IP address, not a name."""
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


def resolve(name: str) -> List[str]:
    """The addresses of a name, or the address itself; empty if the name is unknown. May take many seconds."""
    try:
        return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError):
        return []


def reached(addresses: Sequence[str], port: int) -> List[str]:
    """The addresses that accept a connection to `port`; all are tried at once, for at most 2 s."""
    from . import reach

    targets = [reach.Target(0, address, port, b"") for address in addresses]
    found = {target.address for target in reach.attempt(targets, limit_s=_CONNECT_S)}
    return [address for address in addresses if address in found]


def first_reachable(addresses: Sequence[str], port: int) -> Optional[str]:
    """The first address that accepts a connection; None if none does."""
    return next(iter(reached(addresses, port)), None)


def towards(address: str) -> Tuple[Optional[str], Optional[str]]:
    """The interface, and our address on it, from which packets to `address` (or a host of that name) leave."""
    address = next(iter(resolve(address)), address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))  # sends nothing: only asks for the route
            own = str(sock.getsockname()[0])
    except OSError:
        return None, None
    interface = next((name for name, addresses in own_addresses().items() if own in addresses), None)
    return interface, own


def _is_loopback(address: str) -> bool:
    return _parsed(address).is_loopback or _parsed(address).is_link_local


def _parsed(address: Union[str, bytes]) -> Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    import ipaddress  # takes 2 ms, which most agents have while torch is imported

    return ipaddress.ip_address(address)
