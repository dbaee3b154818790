"""Ports chosen by binding them, outside the kernel's range for outgoing connections."""

from __future__ import annotations

import errno
import os
import socket
from typing import Iterator

_FIRST = 10_000
_TRIES = 200
_FALLBACK_EPHEMERAL = 32_768


class PortTakenError(OSError):
    """The requested port is in use."""


def _candidates() -> Iterator[int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        low, high = _FALLBACK_EPHEMERAL, 60_999
    below, above = max(0, low - _FIRST), max(0, 65_535 - high)
    count = below + above
    for _ in range(_TRIES):  # `random` would import hashlib
        chosen = int.from_bytes(os.urandom(8), "little") % (count or 65_536 - _FIRST)
        yield _FIRST + chosen if not count or chosen < below else high + 1 + chosen - below


def _bind(port: int, only: str, named: bool) -> socket.socket:
    """A socket bound to the port on all addresses, including IPv6 if available, or on `only`. Raises `OSError`.

    `named`: also if connections of an earlier run are left on the port (TIME_WAIT, for a minute).
    """
    why = OSError()
    everywhere = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # noqa: S104 - peers connect to it
    for family, address in ((socket.AF_INET, only),) if only else everywhere:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            why = error
            continue  # no IPv6 in this kernel
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(named))
            sock.bind((address, port))
        except OSError as error:
            sock.close()
            why = error
            if error.errno == errno.EADDRINUSE:
                break
            continue  # IPv6 is disabled
        return sock
    raise why


def reserve(port: int = 0, only: str = "") -> socket.socket:
    """A socket that holds a free port, or the given one, without listening; on all addresses or one IPv4 address.

    A port of our choice is bound without SO_REUSEADDR: it was free, and no other process can bind it.
    Raises `PortTakenError`, or another `OSError` if it cannot be bound for another reason.
    """
    why = OSError()
    for candidate in [port] if port else _candidates():
        try:
            return _bind(candidate, only, named=bool(port))
        except OSError as error:
            why = error
    if why.errno == errno.EADDRINUSE:
        what = f"port {port} is in use" if port else "no free port outside the ephemeral range"
        raise PortTakenError(why.errno, what)
    raise OSError(why.errno, f"port {port or candidate} cannot be bound: {why.strerror}")


def listening(port: int = 0, only: str = "") -> socket.socket:
    """Like `reserve`, but listening: no other process can bind it, and clients wait for the socket's new owner."""
    sock = reserve(port, only)
    try:
        sock.listen(socket.SOMAXCONN)
    except OSError as error:  # another process has bound the same named port, and was faster
        sock.close()
        raise PortTakenError(error.errno, f"port {port} is in use") from error
    return sock


def lent(port: int = 0) -> socket.socket:
    """A port that is held but not listened on: a local server that sets SO_REUSEADDR, like torch's, may bind it."""
    sock = reserve(port)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def port_of(sock: socket.socket) -> int:
    """The port that a reservation holds."""
    return int(sock.getsockname()[1])
