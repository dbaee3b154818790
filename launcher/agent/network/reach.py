"""Finds which addresses of a node its peers really reach: nodes probe one another's addresses at once, in one round.

Up to 65 nodes, each probes all others; beyond that, those at distances of powers of two, so that no node opens more
than a few dozen connections. An answer carries a token that identifies the node: 172.17.0.1 exists on every host with
Docker.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from typing import Any, Deque, List, Mapping, Optional, Sequence, Set

from ..named_tuple import NamedTuple

_ALL = 65
_SETTLE_S = 0.25
"""Once every peer is reached at one address, other addresses have until this long after the start."""

_LIMIT_S = 4.0
"""How long to wait for a peer that is reached at no address: longer than the retransmission of two lost SYNs."""

_STARVED_S = 30.0
"""The same if a connection to it is established: its host is up, and its process may be starved of CPU for a while."""

_NO_FILES = (errno.EMFILE, errno.ENFILE)

_PASSING = (*_NO_FILES, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Why a connection may not be accepted now, and the next one may."""

_PAUSE_S = 0.05


class Target(NamedTuple):
    """One address of one peer, and the token that it answers with."""

    peer: int
    address: str
    port: int
    token: bytes
    """If empty, accepting the connection is enough."""


class Answerer:
    """Answers with the token on its own port, on all addresses of this node, until `close`."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        try:
            self._sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except (OSError, ValueError):  # no IPv6 here
            self._sock = socket.create_server(("", 0), backlog=1024)
        self.port = int(self._sock.getsockname()[1])
        threading.Thread(target=self._run, daemon=True, name="reach").start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    return  # closed
                time.sleep(_PAUSE_S)
                continue
            with contextlib.suppress(OSError), peer:
                peer.sendall(self._token)

    def close(self) -> None:
        """Stop answering."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._sock.close()


def partners(rank: int, nodes: int) -> List[int]:
    """The peers that a node probes: all others, or in a large run those at distances of powers of two and node 0."""
    if nodes <= _ALL:
        return [peer for peer in range(nodes) if peer != rank]
    steps = [1 << power for power in range((nodes - 1).bit_length())]
    return sorted({(rank + sign * step) % nodes for step in steps for sign in (1, -1)} | {0} - {rank})


def attempt(targets: Sequence[Target], *, limit_s: float = _LIMIT_S, settle_s: float = _SETTLE_S) -> Set[Target]:
    """The targets that answer with their token. Returns once all have answered or refused, or at one of the limits.

    All are tried at once, the first ones first if this process may not open that many files.
    """
    selector = selectors.DefaultSelector()
    reached: Set[Target] = set()
    waiting = {target.peer for target in targets}
    queue = collections.deque(targets)
    _connect(selector, queue)
    began = time.monotonic()
    while selector.get_map() or queue:
        passed = time.monotonic() - began
        left = (settle_s if not waiting else limit_s) - passed
        if waiting and left <= 0 and any(_may_answer(key, waiting) for key in selector.get_map().values()):
            left = max(limit_s, _STARVED_S) - passed
        ready = selector.select(max(0.0, min(left, _PAUSE_S) if queue else left))
        if not ready and left <= 0:  # answers that arrived while this process was starved still count
            break
        for key, _ in ready:
            verdict = _step(selector, key)
            if verdict:
                reached.add(key.data)
                waiting.discard(key.data.peer)
        _connect(selector, queue)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    selector.close()
    return reached


def _connect(selector: selectors.BaseSelector, queue: Deque[Target]) -> None:
    """Begin a connection to each target of the queue, until this process may not open more files, or only one.

    Its `Answerer` needs that one: two processes without any would wait for each other.
    """
    with contextlib.suppress(OSError), open(os.devnull, "rb"):
        while queue:
            target = queue[0]
            sock = connecting(target.address, target.port)  # if that is refused, it follows once another one has ended
            queue.popleft()
            if sock is not None:
                selector.register(sock, selectors.EVENT_READ if target.token else selectors.EVENT_WRITE, target)


def connecting(address: str, port: int) -> Optional[socket.socket]:
    """A non-blocking socket that is being connected; None if that has already failed.

    Raises `OSError` if this process may not open more files.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = None
    try:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if sock.connect_ex((address, port)) in (0, errno.EINPROGRESS):
            return sock
    except OSError as error:
        if error.errno in _NO_FILES:
            raise
    if sock is not None:
        sock.close()
    return None


def _may_answer(key: selectors.SelectorKey, waiting: Set[int]) -> bool:
    """Whether this is an established connection to one of these peers, still without an answer."""
    sock, target = key.fileobj, key.data
    assert isinstance(sock, socket.socket)
    with contextlib.suppress(OSError):  # not connected yet
        return bool(target.token and target.peer in waiting and sock.getpeername())
    return False


def _step(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> Optional[bool]:
    """Advance one connection. True: it is the expected peer; False: it is not; None: not known yet."""
    sock, target = key.fileobj, key.data
    assert isinstance(sock, socket.socket)
    try:
        if target.token:
            verdict = bool(sock.recv(len(target.token), socket.MSG_WAITALL) == target.token)
        else:
            verdict = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
    except BlockingIOError:
        return None
    except OSError:
        verdict = False
    selector.unregister(sock)
    sock.close()
    return verdict


def targets(peers: Mapping[int, Mapping[str, Any]], own: Sequence[str]) -> List[Target]:
    """Every address of every peer, except this node's own: they lead to itself, unless both are on one host.

    The first address of each comes first.
    """
    found = []
    for peer, about in peers.items():
        elsewhere = [address for address in about["addresses"] if address not in own] or about["addresses"]
        token = about["token"].encode()
        found += [(place, Target(peer, address, about["port"], token)) for place, address in enumerate(elsewhere)]
    return [target for _, target in sorted(found, key=lambda one: one[0])]
