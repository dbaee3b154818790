"""How nodes shut down when a run has ended: node 0 exits last, as its store serves the others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from launcher.agent.group import nodes as nodes_module
from launcher.agent.group.nodes import Nodes
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.interface import Prefixed
from launcher.agent.store.server import Server
from testbed import wait_until


class CountingStore(Server):
    """Counts how often node 0 has looked for shutdown messages; stands for the others' connections, too."""

    looks = 0

    def leave(self, *_: str) -> None:
        """A client would leave a message for its end; here all nodes are in this process."""

    def _ask(self, call: str, *args: Any) -> Any:
        self.looks += call == "add" and args[0].endswith("shutdown") and not int(args[1])
        return super()._ask(call, *args)


@pytest.mark.parametrize(("limit_s", "each_s"), [(600.0, 0.0), (0.0, 300.0)])
def test_a_shutdown_message_of_a_lost_node_does_not_count_for_its_replacement(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, each_s: float
) -> None:
    """Of many nodes some may come late: node 0 waits longer for each."""
    monkeypatch.setattr(nodes_module, "_BARRIER_AFTER_SUCCESS_S", limit_s)
    monkeypatch.setattr(nodes_module, "_BARRIER_EACH_S", each_s)
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    store = CountingStore(ports.listening(only="127.0.0.1"), "k" * 32)
    first, lost, new = (Nodes(job, node, "-", "127.0.0.1", store, lambda *_, **__: None) for node in (0, 1, 1))
    for node in (first, lost):
        node.members = nodes_module.Members(Prefixed("round/0", store), 2)
    lost.shutdown_barrier(reported=True, succeeded=False)
    for node in (first, new):
        node.members = nodes_module.Members(Prefixed("round/1", store), 2)

    leaves = threading.Thread(target=first.shutdown_barrier, kwargs={"reported": True, "succeeded": True}, daemon=True)
    leaves.start()
    wait_until("node 0 to look for nodes that are still there", lambda: store.looks > 3 or not leaves.is_alive())
    assert leaves.is_alive()
    new.shutdown_barrier(reported=True, succeeded=True)
    leaves.join(60)
    assert not leaves.is_alive()
