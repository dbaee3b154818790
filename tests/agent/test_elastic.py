"""The rendezvous of elastic runs: torchelastic's, without its waits for nodes that have exited or send nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.forkserver.setup import Setup
from launcher.agent.group.workers_network import WorkersNetwork
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.client import Client
from launcher.agent.store.interface import Prefixed
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousInfo

    from launcher.agent.group import dynamic_rendezvous
    from launcher.agent.messages import Rendezvous
    from launcher.agent.store.interface import Store

pytestmark = pytest.mark.torch
KEY = "k" * 64


def here() -> Store:
    """A store of this process alone."""
    return Server(ports.listening(only="127.0.0.1"), KEY)


def node_of(port: int, rank: int) -> dynamic_rendezvous.ElasticNodes:
    """A node of a run with one or two nodes, with its own connection."""
    from launcher.agent.group import dynamic_rendezvous

    store = Client("127.0.0.1", port, key=KEY, timeout_s=60)
    where: Rendezvous = {"addr": "127.0.0.1"}
    asked = Job(
        "r", ["x.py"], "script", "/", {}, "/", where, min_nodes=1, max_nodes=2, rdzv_timeout_s=60, last_call_s=1.0
    )
    return dynamic_rendezvous.ElasticNodes(asked, rank, f"n{rank}", "127.0.0.1", store, lambda *_, **__: None)


def meet(*nodes: dynamic_rendezvous.ElasticNodes) -> list[RendezvousInfo]:
    """What the nodes learn in their next round, which all join at once; waits less than their rendezvous timeout."""
    found: dict[int, RendezvousInfo] = {}
    threads = [
        threading.Thread(target=lambda at=at, node=node: found.update({at: node.next_rendezvous()}), daemon=True)
        for at, node in enumerate(nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == list(range(len(nodes))), "some wait"
    return [found[at] for at in range(len(nodes))]


def test_a_new_node_that_is_not_rank_0_does_not_wait() -> None:
    """Torch's handler waits there for an address that rank 0 announces only in its own first round."""
    listener = ports.listening(only="127.0.0.1")
    Server(listener, KEY)
    first = node_of(ports.port_of(listener), 0)
    assert meet(first)[0].world_size == 1
    second = node_of(ports.port_of(listener), 1)
    held: list[int] = []
    first.network.master_port.hand_over = lambda sock: held.append(ports.port_of(sock))

    infos = meet(first, second)

    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    assert {info.bootstrap_store_info.master_port for info in infos if info.bootstrap_store_info} == set(held)
    assert len(held) == 1
    for node in (first, second):
        node.shutdown()
        for client in (node.store, node._watch._store):
            client.close()
    listener.close()


def test_nodes_meet_once_more_when_one_is_lost_before_its_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round another node is rank 0, and never announces where the workers are to meet."""
    from torch.distributed.elastic.rendezvous.api import RendezvousInfo

    from launcher.agent.group import dynamic_rendezvous

    monkeypatch.setattr(dynamic_rendezvous, "_EXPLORE_S", 0.05)
    store = here()
    parts = [Prefixed(f"round/{number}", store) for number in range(2)]
    rounds = [RendezvousInfo(parts[0], 1, 2, None), RendezvousInfo(parts[1], 0, 1, None)]  # type: ignore[arg-type]
    told: list[tuple[str, Any]] = []
    node: Any = dynamic_rendezvous.ElasticNodes.__new__(dynamic_rendezvous.ElasticNodes)
    node.job = SimpleNamespace(master_port=None, on_loopback=True, min_nodes=1, rdzv_timeout_s=9.0, unreachable_s=30.0)
    node.network, node.own_addr = WorkersNetwork(node.job, lambda *_, **__: None), "127.0.0.1"
    node.own_workers = 3
    node.round, node.stopping, node._tell = -1, threading.Event(), lambda name, **about: told.append((name, about))
    node._watch = SimpleNamespace(verdict=None, begin=lambda *_, **__: None, verdicts=dict, learn=lambda _: None)
    node.store = store
    node._dynamic = SimpleNamespace(next=lambda: rounds.pop(0), participants={"n0"}, wait_for_more=lambda _: None)

    met = node.next_rendezvous()

    assert (met.rank, met.world_size, met.bootstrap_store_info.master_addr) == (0, 1, "127.0.0.1")
    assert node.round == 1
    assert [name for name, _ in told] == ["warning"]
    assert "for all nodes' numbers of workers; the nodes meet once more" in told[0][1]["message"]
    assert node.counts == [3]


@pytest.mark.parametrize(
    ("nodes", "replaceable", "elastic"), [((2, 2), False, False), ((1, 2), False, True), ((2, 2), True, True)]
)
def test_the_fork_server_imports_torch_before_it_forks_a_group_that_needs_it(
    nodes: tuple[int, int], replaceable: bool, elastic: bool
) -> None:
    """Else the group's process would import torch as well: a second of CPU more on each node."""
    job = Job(
        "r", ["x.py"], "script", "/", {}, "/r", {}, min_nodes=nodes[0], max_nodes=nodes[1], replaceable=replaceable
    )
    setup: Any = Setup(*[None] * len(Setup._fields))._replace(job=job._asdict())  # type: ignore[arg-type]

    assert (setup.elastic, job.elastic) == (elastic, elastic)
