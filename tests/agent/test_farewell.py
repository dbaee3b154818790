"""How nodes part when a run has ended: node 0, whose store the others hear it from, goes last."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from launcher.agent.group import nodes as nodes_module
from launcher.agent.group.nodes import Nodes
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.interface import Prefixed
from launcher.agent.store.server import Server
from testbed import wait_until

if TYPE_CHECKING:
    import pytest


class Looked(Server):
    """Counts how often node 0 has looked for farewells, and stands for the others' connections, too."""

    looks = 0

    def leave(self, *_: str) -> None:
        """What a client leaves behind at its end: all nodes are in this process."""

    def _ask(self, call: str, *args: Any) -> Any:
        self.looks += call == "add" and args[0].endswith("farewell") and not int(args[1])
        return super()._ask(call, *args)


def test_a_farewell_of_a_node_that_was_lost_is_not_that_of_the_one_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "_WELL_S", 600.0)
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    store = Looked(ports.listening(only="127.0.0.1"), "k" * 32)
    first, lost, new = (Nodes(job, node, "-", "127.0.0.1", store, store, lambda *_, **__: None) for node in (0, 1, 1))
    for node in (first, lost):
        node._begin(Prefixed("round/0", store), 2)
    lost.farewell(told=True, well=False)
    for node in (first, new):
        node._begin(Prefixed("round/1", store), 2)

    leaves = threading.Thread(target=first.farewell, kwargs={"told": True, "well": True}, daemon=True)
    leaves.start()
    wait_until("node 0 to look for who is still there", lambda: store.looks > 3 or not leaves.is_alive())
    assert leaves.is_alive()
    new.farewell(told=True, well=True)
    leaves.join(60)
    assert not leaves.is_alive()
