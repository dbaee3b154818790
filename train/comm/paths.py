"""Network paths between hosts: open ports and the path MTU. Needs a store, but no process group and no root.

Every node answers at a few ports of its own (`answerer.py`) and tries all other nodes' ports at once. A connection
shows that the port is open; full segments over it show that the path takes what the interfaces promise. Unfragmentable
datagrams measure how much it takes: a large one precedes a small one, so that a slow host does not look like loss.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import selectors
import socket
import struct
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from comm.answerer import HEADER, Answerer, ephemeral, family, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEET_S = 120.0
_QUIET_S = 4.0
"""Stop when no connection opens or ends for this long: longer than the retransmission of two lost SYNs."""

_MTUS = (
    9216, 9000, 8950, 8900, 8500, 4096, 2044, 1500, 1480, 1460,
    1450, 1440, 1420, 1400, 1380, 1350, 1320, 1280, 1024, 576,
)  # fmt: skip
"""MTUs of Ethernet, IPoIB, and the usual tunnels in them."""

_SPARE = 16
"""Files that something else may open meanwhile."""

_SMALL = 100
_TRIES, _PROOFS, _TRY_S = 6, 4, 1.0
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE = 10, 23, 3
_IP_MTU, _IPV6_MTU = 14, 24


class Peer(NamedTuple):
    """The address and ports at which another node answers."""

    node: int
    address: str
    mtu: int
    ports: dict[str, int]
    """One port of each range, by the range's name."""

    udp: int
    ephemeral: str
    """The range in which gloo and NCCL listen there."""


def own_address(master: str) -> str:
    """The local address from which packets to the master leave; on the master, the master's."""
    info = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(info[0], socket.SOCK_DGRAM) as sock:
        sock.connect(info[4])  # looks up the route; sends nothing
        return str(sock.getsockname()[0])


def route_mtu(sock: socket.socket) -> int:
    """The path MTU to the peer of a connected socket, as the kernel knows it."""
    if sock.family == socket.AF_INET6:
        return sock.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
    return sock.getsockopt(socket.IPPROTO_IP, _IP_MTU)


def look(store: Any, node: int, nodes: int, master: str) -> dict[str, Any]:
    """Try all other nodes; called once on every node.

    Returns `address`, `mtu`, `blocked`: [node, range of ports, why] for each port that did not open, `narrow`: [node,
    bytes that pass or None, bytes that should] for each path that takes less than the interfaces at both ends, and
    `apart`: whether a process group could not connect.
    """
    address = own_address(master)
    addresses = _tell_all(store, "address", node, nodes, address)
    others = {other: at for other, at in enumerate(addresses) if at != address}
    answers = Answerer(address)
    try:
        mtu = _mtu_towards(others)
        about = {"mtu": mtu, "ports": answers.ports, "udp": answers.udp, "ephemeral": name_of(ephemeral())}
        told = _tell_all(store, "ports", node, nodes, about)
        peers = [Peer(other, at, **told[other]) for other, at in others.items()]
        shut, listen = blocked(peers), {peer.node: peer.ephemeral for peer in peers}
        found = {"address": address, "mtu": mtu, "blocked": shut, "narrow": narrow(peers, mtu)}
        found["apart"] = any(why == "stalled" or name == listen[other] for other, name, why in shut)
        _tell_all(store, "tried", node, nodes, True)
    finally:
        answers.close()
    return found


def _tell_all(store: Any, what: str, node: int, nodes: int, value: Any) -> list[Any]:
    """Publish this node's value and return every node's, by node."""
    store.set(f"paths/{what}/{node}", json.dumps(value))
    names = [f"paths/{what}/{other}" for other in range(nodes)]
    store.wait(names, timedelta(seconds=_MEET_S))
    return [json.loads(store.get(name)) for name in names]


def _mtu_towards(others: dict[int, str]) -> int:
    for address in others.values():
        with contextlib.suppress(OSError), socket.socket(family(address), socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return route_mtu(sock)
    return 0


def allow_files() -> None:
    """Let this process open as many files as it may: each path needs some, and so does gloo for each rank."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _parts(peers: list[Peer], each: int) -> Iterator[list[Peer]]:
    """So many peers at a time that their files may be open at once. `each`: how many files a peer needs."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    left = len(peers) * each if most == resource.RLIM_INFINITY else most - len(os.listdir("/proc/self/fd")) - _SPARE
    size = max(1, left // each)
    return (peers[at : at + size] for at in range(0, len(peers), size))


def blocked(peers: list[Peer]) -> list[tuple[int, str, str]]:
    """Ports that do not open, or over which full segments do not arrive: (node, range, why)."""
    return [each for part in _parts(peers, 4) for each in _blocked(part)]


def _blocked(peers: list[Peer]) -> list[tuple[int, str, str]]:
    selector = selectors.DefaultSelector()
    found: dict[tuple[int, str], str] = {}
    for peer in peers:
        for name, port in peer.ports.items():
            sock = socket.socket(family(peer.address), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            problem = sock.connect_ex((peer.address, port))
            if problem not in (0, errno.EINPROGRESS):
                found[peer.node, name] = _why(problem)
                sock.close()
                continue
            found[peer.node, name] = "no answer"
            selector.register(sock, selectors.EVENT_WRITE, (peer.node, name))
    last = time.monotonic()
    while selector.get_map() and time.monotonic() - last < _QUIET_S:
        for key, _ in selector.select(0.5):
            last = time.monotonic()
            assert isinstance(key.fileobj, socket.socket)
            said = _step(selector, key.fileobj, key)
            if said is not None:
                found[key.data] = said
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    selector.close()
    return [(node, name, why) for (node, name), why in found.items() if why]


def _step(selector: selectors.BaseSelector, sock: socket.socket, key: selectors.SelectorKey) -> str | None:
    """Advance one connection; return its problem, empty if there is none, or None if nothing is new."""
    if key.events == selectors.EVENT_WRITE:
        problem = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not problem:
            selector.modify(sock, selectors.EVENT_READ, key.data)
            return "stalled"  # until the peer closes it
    else:
        try:
            problem = 0
            if sock.recv(1 << 16):
                return None
        except BlockingIOError:
            return None
        except OSError as error:
            problem = error.errno or errno.EIO
    selector.unregister(sock)
    sock.close()
    return _why(problem) if problem else ""


def _why(problem: int) -> str:
    known = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "no answer"}
    return known.get(problem) or errno.errorcode.get(problem, str(problem))


class _Probe:
    """Probes one peer with datagrams with the don't-fragment bit set."""

    def __init__(self, peer: Peer, own_mtu: int) -> None:
        self.peer, self.expected = peer, min(own_mtu, peer.mtu, 65_535)
        self.passed = self.tries = self.proofs = 0
        self.due = 0.0
        self.sock = socket.socket(family(peer.address), socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        six = self.sock.family == socket.AF_INET6
        self._headers = 48 if six else 28
        level, option = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if six else (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
        self.sock.setsockopt(level, option, _PROBE)
        self.sock.connect((peer.address, peer.udp))

    @property
    def done(self) -> bool:
        """Whether the result is certain, or the tries are used up."""
        return self.passed >= self.expected or self.proofs >= _PROOFS or self.tries > _TRIES

    def send(self) -> None:
        """Send a large datagram ahead of a small one; from the second try on, also all usual sizes between them."""
        self.tries += 1
        self.due = time.monotonic() + _TRY_S
        sizes = [self.expected] + [size for size in _MTUS if _SMALL < size < self.expected] * (self.tries > 1)
        for size in [*sizes, _SMALL]:
            with contextlib.suppress(OSError):  # above the local interface's MTU, or an earlier one was refused
                self.sock.send(HEADER.pack(self.tries, size).ljust(size - self._headers, b"\0"))

    def receive(self) -> None:
        """Process one answer."""
        with contextlib.suppress(OSError, struct.error):
            number, size = HEADER.unpack(self.sock.recv(64))
            self.passed = max(self.passed, size)
            if size == _SMALL and number == self.tries:
                self.proofs += 1
                self.due = time.monotonic()


def narrow(peers: list[Peer], own_mtu: int) -> list[tuple[int, int | None, int]]:
    """Paths that take less than the interfaces at both ends: (node, bytes that pass or None, bytes that should)."""
    return [each for part in _parts(peers, 1) for each in _narrow(part, own_mtu)]


def _narrow(peers: list[Peer], own_mtu: int) -> list[tuple[int, int | None, int]]:
    probes = [_Probe(peer, own_mtu) for peer in peers]
    selector = selectors.DefaultSelector()
    for probe in probes:
        selector.register(probe.sock, selectors.EVENT_READ, probe)
    waiting = list(probes)
    while waiting:
        now = time.monotonic()
        for probe in waiting:
            if probe.due <= now:
                probe.send()
        for key, _ in selector.select(max(0.0, min(probe.due for probe in waiting) - now)):
            key.data.receive()
        waiting = [probe for probe in waiting if not probe.done]
    for probe in probes:
        probe.sock.close()
    selector.close()
    return [(it.peer.node, it.passed or None, it.expected) for it in probes if it.passed < it.expected]
