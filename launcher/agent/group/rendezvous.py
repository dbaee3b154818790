"""Rendezvous of a fixed number of nodes, over one store on node 0.

The node rank is the plan's. Every round has its own keys and its own master port, so nothing of an earlier round can be read by
mistake. No torch is needed for it.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from ..failures import Failure
from ..job import Job
from ..network import routes
from ..store.interface import Prefixed, Store
from ..store.server import Server
from .nodes import LOST_S, POLL_S, Nodes

_SEE_S = 5.0
_DONE = "done"
OVER = "over"
"""Key that says to who comes late that the run has ended well."""


class Round(NamedTuple):
    """What the nodes have agreed on for one round."""

    workers: List[int]
    """How many workers each node has, by node rank."""

    master_addr: str
    master_port: int


def node_0_is_there(job: Job, addr: str, port: int) -> bool:
    """Whether its agent runs: where its address was given, it listens from before the others start to its own end."""
    try:
        if routes.is_address(str(job.rendezvous.get("addr"))) and "any_order" not in job.rendezvous:
            socket.create_connection((addr, port), timeout=_SEE_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # the store's own attempts take longer, and say what is wrong
    return True


def connect(job: Job, addr: str, port: int, *, listen_fd: Optional[int], warn: Callable[[str], None]) -> Store:
    """The run's store: the store itself on the node that holds the listening socket, a client elsewhere."""
    if listen_fd is not None:
        return Server(socket.socket(fileno=listen_fd), job.key, warn, nodes=job.max_nodes, host_s=job.unreachable_s)
    from ..store.client import Client

    comes_back = job.replaces_lost and "port" in job.rendezvous  # else one that is new has another port
    limits = {"timeout_s": job.rdzv_timeout_s, "answer_s": job.peer_timeout_s, "host_s": job.unreachable_s}
    return Client(addr, port, key=job.key, comes_back=comes_back, tell=warn, **limits)


class FixedNodes(Nodes):
    """Static rendezvous: `max_nodes` nodes, node rank as planned."""

    def next_rendezvous(self, workers: int) -> Round:
        """All nodes meet in the next round, this one with so many workers; node 0 says with which port.

        Raises `RendezvousError` with who is missing.
        """
        self.round += 1
        prefix = f"round/{self.round}"
        self._watch.begin(f"{prefix}/word", watch_beats=self.round > 0)
        self.store.set(f"{prefix}/join/{self.node_rank}", json.dumps([workers, self.job.attempt, self.job.why_again]))
        self.store.add(f"{prefix}/joined", 1)
        if self.node_rank == 0:
            self._gather(prefix)
            self.restarts += int(self.round > 0)
            joined = self.store.multi_get([f"{prefix}/join/{node}" for node in range(self.job.max_nodes)])
            counts, numbers, reasons = zip(*map(json.loads, joined))
            # A scheduler that starts nodes one by one counts its attempts for each of them.
            attempt = [max(numbers), Failure.NODE if Failure.NODE in reasons else max(reasons)]
            go = {
                **self.master_port.open(self.round),
                "addr": self.job.master_addr,
                "restarts": self.restarts,
                "attempt": attempt,
                "workers": counts,
            }
            self.store.set(f"{prefix}/go", json.dumps(go))
        self._await(f"node 0 to open round {self.round}", lambda: self.store.check([f"{prefix}/go"]), list)
        go = json.loads(self.store.get(f"{prefix}/go"))
        self.restarts, self.master_port.serves_workers = go["restarts"], go["serves"]
        told = self.job.master_addr or go["addr"]
        self.master_addr = told or self.master_addr
        self._watch.begin(f"{prefix}/word", watch_beats=True)
        if self.round == 0:
            self._explore(known=told is not None)
        if go["attempt"][0]:
            number, why = go["attempt"]
            self.network.variables.update(DISTLAUNCH_ATTEMPT=str(number), DISTLAUNCH_ATTEMPT_REASON=why)
        self._begin(Prefixed(prefix, self.store), self.job.max_nodes)
        return Round(go["workers"], self.master_addr, go["port"])

    def _explore(self, *, known: bool) -> None:
        """Try one another's addresses; what all reach of node 0 is MASTER_ADDR, of this node its interface."""
        if self.network.fabric is None:
            return
        from ..network import reach

        own: Dict[str, str] = self.network.fabric["interfaces"]
        found = reach.explore(self.store, self.node_rank, self.job.max_nodes, list(own), self._await)
        if found.master and not known:
            self.master_addr = found.master[0]
        interfaces = list(dict.fromkeys(own[address] for address in found.usable))
        self.network.settle(interfaces, f"all {self.job.max_nodes - 1} peers reach this node at")
        if found.cut_off and own and self.node_rank == 0:  # else all are on one machine, which has no network
            pairs = ", ".join(f"{one} to {other}" for one, other in found.cut_off[:5])
            more = f" and {len(found.cut_off) - 5} more" if len(found.cut_off) > 5 else ""
            self._tell("warning", message=f"no address leads from node {pairs}{more}: what these send one another will hang")

    def finished(self) -> bool:
        """As for all runs; the verdict of the round decides whether that came first, or a node that stops the run."""
        if not super().finished() or self.say(_DONE)["kind"] != _DONE:
            return False
        self.store.set(OVER, "")
        return True

    def ended_well(self) -> bool:
        """The verdict of the round says so, which may not have arrived here yet where this node's part was done."""
        limit = time.monotonic() + LOST_S
        while self._has_finished and self.heard() is None and time.monotonic() < limit:
            time.sleep(POLL_S)
        return (self.heard() or {}).get("kind") == _DONE

    def begins_again(self) -> bool:
        """Whether a node has asked for a restart: all stop their workers then and come to the next round."""
        verdict = self.heard()
        return bool(verdict is not None and verdict["kind"] == "restart")

    def _gather(self, prefix: str) -> None:
        nodes = self.job.max_nodes

        def missing() -> List[str]:
            return [str(n) for n in range(nodes) if not self.store.check([f"{prefix}/join/{n}"])]

        self._await(f"{nodes} nodes to join round {self.round}", lambda: self.store.add(f"{prefix}/joined", 0) >= nodes, missing)
