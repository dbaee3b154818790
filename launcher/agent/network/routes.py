"""Addresses as they are observed: those of this host, those that a peer reaches, and the interfaces in use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP = 1
_CONNECT_S = 2.0

LONGEST_S = 24 * 86400.0
"""The longest that one call can wait: poll and sockets count milliseconds in a C int."""


def own_addresses() -> Dict[str, List[str]]:
    """The addresses of each interface that is up, without loopback and link-local ones: IPv4 first, `lo`'s last.

    One that is down may have thousands: kube-proxy puts those of all services there.
    """
    from . import netlink  # few processes ask

    try:
        every = [(name, text.partition("/")[0]) for name, text in netlink.addresses()]
    except OSError:  # a sandbox without netlink
        every = list(_first_addresses())
    every.sort(key=lambda each: each[0] == "lo")  # with BGP on the host, it may have the only one
    found: Dict[str, List[str]] = {}
    for name, address in filter(lambda each: leads_out(each[1]), every):
        found.setdefault(name, []).append(address)
    return {name: addresses for name, addresses in found.items() if _is_up(name)}


def _is_up(name: str) -> bool:
    try:
        return bool(struct.unpack_from("=H", _asked(_SIOCGIFFLAGS, name))[0] & _UP)
    except OSError:  # a sandbox may not tell
        return True


def _first_addresses() -> Iterator[Tuple[str, str]]:
    """The first IPv4 address of each interface, and all IPv6 ones."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # it has no IPv4 address
            yield name, socket.inet_ntoa(_asked(_SIOCGIFADDR, name)[4:8])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            packed_hex, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed_hex))


def _asked(what: int, name: str) -> bytes:
    """What the kernel says of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock.fileno(), what, struct.pack("256s", os.fsencode(name)[:15]))[16:]


def candidates(name: str) -> List[str]:
    """Addresses at which peers may reach this host, best first: those its name resolves to, then all others."""
    own = [address for addresses in own_addresses().values() for address in addresses]
    wanted = [address for address in resolve(name) if address in own] + own
    return list(dict.fromkeys(wanted)) or ["127.0.0.1"]


def is_address(text: str) -> bool:
    """Whether the text is an IP address, not a name."""
    return bool(_packed(text))


def resolve(name: str) -> List[str]:
    """The addresses of a name, or the address itself; empty if the name is unknown. May take many seconds."""
    try:
        found = socket.getaddrinfo(_encoded(name), None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))
    except (OSError, UnicodeError):  # UnicodeError: not a host name
        return []


def connect(address: str, port: int, timeout_s: float) -> socket.socket:
    """A TCP connection. Raises `OSError`."""
    host: Any = _encoded(address)
    return socket.create_connection((host, port), timeout=timeout_s)


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


def leads_out(address: str) -> bool:
    """Whether hosts beyond this link may have a route to it."""
    return not is_loopback(address) and not is_link_local(address)


def is_loopback(address: str) -> bool:
    """Whether it is any host's own address."""
    packed = _packed(address)
    return packed[:1] == b"\x7f" if len(packed) == 4 else packed == bytes(15) + b"\1"


def is_link_local(address: str) -> bool:
    """Whether only this link has the address."""
    packed = _packed(address)
    if len(packed) == 4:  # IPv4
        return packed[:2] == bytes((169, 254))
    return packed[:1] == b"\xfe" and packed[1] & 0xC0 == 0x80


def _encoded(name: str) -> bytes:
    """A host name as the resolver takes it; as text, it would go through a codec whose import takes 1 ms."""
    return name.encode("ascii" if name.isascii() else "idna")


def _packed(address: str) -> bytes:
    """The address in binary form; empty if the text is none. `ipaddress` takes 2 ms to import."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            return socket.inet_pton(family, address.partition("%")[0])
    return b""
