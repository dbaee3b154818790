"""Elastic runs without workers: nodes in one process that ask for their places over a real store."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.group import elastic, places
from launcher.agent.group.errors import NotNeededError, RendezvousError, StopRequestedError
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.client import Client
from launcher.agent.store.interface import StoreError
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from launcher.agent.group.nodes import Round
    from launcher.agent.messages import Rendezvous
    from launcher.agent.store.interface import Store

KEY = "k" * 64
LIMIT_S = 30


class Asks:
    """A node that asks for its place, in a thread of its own."""

    def __init__(self, node: elastic.ElasticNodes, workers: int) -> None:
        self.node = node
        self.got: Round | Exception | None = None
        self._thread = threading.Thread(target=self._ask, args=(workers,), daemon=True, name=f"asks {node.node_rank}")
        self._thread.start()

    def _ask(self, workers: int) -> None:
        try:
            self.got = self.node.next_rendezvous(workers)
        except (RendezvousError, NotNeededError, StopRequestedError, StoreError) as error:
            self.got = error

    def result(self) -> Round:
        """What the node has learned."""
        self._thread.join(LIMIT_S)
        assert not isinstance(self.got, Exception | None), self.got
        return self.got

    def error(self) -> Exception:
        """How the node has ended instead."""
        self._thread.join(LIMIT_S)
        assert isinstance(self.got, Exception), self.got
        return self.got

    def waits(self) -> bool:
        """Whether it has no place, although there was time to give it one."""
        self._thread.join(0.5)
        return self._thread.is_alive()


class Run:
    """An elastic run: node 0 with the store, and others with a connection each. No workers."""

    def __init__(
        self, least: int, most: int, *, last_call_s: float = 60.0, timeout_s: float = 60.0, grace_s: float = LIMIT_S
    ) -> None:
        self._job = Job(
            "r", ["x.py"], "script", "/", {}, "/", _here(), min_nodes=least, max_nodes=most, rdzv_timeout_s=timeout_s,
            last_call_s=last_call_s, grace_s=grace_s, replaceable=True,
        )  # fmt: skip
        self._listener = ports.listening(only="127.0.0.1")
        self.store = Server(self._listener, KEY)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._clients: list[Client] = []

    def node(self, rank: int) -> elastic.ElasticNodes:
        """A node; those with one rank are different ones, as if one had replaced the other."""
        return elastic.ElasticNodes(self._job, rank, f"n{rank}", "127.0.0.1", self._store_of(rank), self._tell)

    def asks(self, node: int | elastic.ElasticNodes, workers: int = 1) -> Asks:
        """A node that asks, which is made first if this is its rank."""
        return Asks(self.node(node) if isinstance(node, int) else node, workers)

    def meet(self, *ranks: int) -> list[Asks]:
        """Nodes that have met, all at once."""
        asks = [self.asks(self.node(rank)) for rank in ranks]
        for each in asks:
            each.result()
        return asks

    def lose(self, node: elastic.ElasticNodes) -> None:
        """Have node 0 notice that a node is gone: its connection closes."""
        node.store._sock.shutdown(socket.SHUT_RDWR)

    def messages(self, name: str) -> list[str]:
        """The messages of events."""
        return [about.get("message") or about["what"] for event, about in self.told if event == name]

    def close(self) -> None:
        """End all connections, and node 0's thread."""
        self.store.set(places.CLOSED, "")
        for client in self._clients:
            client.close()
        self._listener.close()

    def _store_of(self, rank: int) -> Store:
        if not rank:
            return self.store
        self._clients.append(Client("127.0.0.1", ports.port_of(self._listener), key=KEY, timeout_s=60))
        return self._clients[-1]

    def _tell(self, name: str, **about: Any) -> None:
        self.told.append((name, about))


def _here() -> Rendezvous:
    where: Rendezvous = {"addr": "127.0.0.1"}
    return where


@pytest.fixture
def elastic_run() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(*args: Any, **options: Any) -> Run:
        made.append(Run(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
