"""Ports chosen by binding them, outside the range from which the kernel gives ports to outgoing connections."""

from __future__ import annotations

import socket
from typing import Iterable, Optional

_FIRST = 10_000
_FALLBACK_EPHEMERAL = 32_768


class PortTakenError(OSError):
    """The port that was asked for is in use."""


def _candidates() -> Iterable[int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        low, high = _FALLBACK_EPHEMERAL, 60_999
    import random  # brings hashlib; only node 0 needs it

    ports = [*range(_FIRST, low), *range(high + 1, 65_536)] or list(range(_FIRST, 65_536))
    return random.sample(ports, min(len(ports), 200))


def _bind(port: int, only: str, named: bool) -> Optional[socket.socket]:
    """A socket bound to that port on all addresses, of both families where there is IPv6, or on one; None when it is taken.

    `named`: also one that only connections of a run before this one are left of (TIME_WAIT, a minute long).
    """
    everywhere = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # noqa: S104 - peers connect to it
    for family, address in ((socket.AF_INET, only),) if only else everywhere:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 in this kernel
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(named))
            sock.bind((address, port))
        except OSError as error:
            sock.close()
            if error.errno == 98:  # EADDRINUSE, Linux
                return None
            continue  # IPv6 switched off
        return sock
    return None


def reserve(port: int = 0, only: str = "") -> socket.socket:
    """A socket that holds a free port (or the given one), on all addresses or one IPv4 address, without listening on it.

    One of our choice is bound without SO_REUSEADDR, so it was free, and nobody else can bind it. Raises `PortTakenError`.
    """
    for candidate in [port] if port else _candidates():
        sock = _bind(candidate, only, named=bool(port))
        if sock is not None:
            return sock
    raise PortTakenError(98, f"port {port} is in use" if port else "no free port outside the ephemeral range")


def listening(port: int = 0, only: str = "") -> socket.socket:
    """The same, and it listens, so nobody else can bind it: who connects waits for whoever the socket is handed to."""
    sock = reserve(port, only)
    try:
        sock.listen(socket.SOMAXCONN)
    except OSError as error:  # somebody else has bound a named one, too, and was faster
        sock.close()
        raise PortTakenError(error.errno, f"port {port} is in use") from error
    return sock


def lent(port: int = 0) -> socket.socket:
    """A port that is held, but not listened on: a server of anybody here that sets SO_REUSEADDR, as torch's does, may take it."""
    sock = reserve(port)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def port_of(sock: socket.socket) -> int:
    """The port that a reservation holds."""
    return int(sock.getsockname()[1])
