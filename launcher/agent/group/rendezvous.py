"""Rendezvous of a fixed number of nodes, over one store on node 0.

Node ranks are those of the plan. Every round has its own keys and its own master port, so that nothing of an earlier
round is read by mistake. torch is not needed.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ..contracts import load
from ..failures import Failure
from ..job import Job
from ..network import routes
from ..ranks import as_runs, from_runs
from ..store.interface import Prefixed, Store, absent
from ..store.server import Server
from . import offers
from .nodes import LOST_S, POLL_S, Members, Nodes, Round
from .whole import ROLES_DONE, count_finished

_SEE_S = 5.0
_DONE = "done"
OVER = "over"
"""Key that shows a late node that the run has succeeded."""


def node_0_is_there(job: Job, addr: str, port: int) -> bool:
    """Whether node 0's agent is running: if its address is given, it listens before others start, until it exits."""
    try:
        if routes.is_address(str(job.rendezvous.get("addr"))) and "any_order" not in job.rendezvous:
            routes.connect(addr, port, _SEE_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # the store's client tries for longer, and reports what is wrong
    return True


def connect(job: Job, addr: str, port: int, *, listen_fd: Optional[int], warn: Callable[[str], None]) -> Store:
    """The run's store: the server on the node that holds the listening socket, a client elsewhere."""
    if listen_fd is not None:
        return Server(socket.socket(fileno=listen_fd), job.key, warn, nodes=job.max_nodes, host_s=job.unreachable_s)
    from ..store.client import Client

    comes_back = job.replaces_lost and "port" in job.rendezvous  # else a new node 0 has another port
    limits = {"timeout_s": job.rdzv_timeout_s, "answer_s": job.peer_timeout_s, "host_s": job.unreachable_s}
    return Client(addr, port, key=job.key, comes_back=comes_back, tell=warn, **limits)


class FixedNodes(Nodes):
    """Static rendezvous: `max_nodes` nodes, with the planned node ranks."""

    _address = ""
    """The address at which most peers reach this node; empty if all nodes are on one host."""

    def next_rendezvous(self, workers: int) -> Round:
        """Meet all nodes in the next round, this one with `workers` workers; node 0 chooses the port.

        Raises `RendezvousError`, which names the missing nodes.
        """
        self.round += 1
        prefix, nodes = f"{self.role.prefix}round/{self.round}", self.role.nodes
        self._watch.begin(f"{prefix}/verdict", expects_signs=self.round > 0)
        self.store.set(f"{prefix}/join/{self.rank}", json.dumps([workers, self.job.attempt, self.job.why_again]))
        self.store.add(f"{prefix}/joined", 1)
        if self.rank == 0:
            self._gather(prefix)
            self.restarts += int(self.round > 0)
            joined = self.store.multi_get([f"{prefix}/join/{node}" for node in range(nodes)])
            counts, *attempts = zip(*map(json.loads, joined))
            go = {
                **self.network.master_port.open(self.round, torch=load(self.job.contract).torch),
                "addr": self.job.master_addr,
                "restarts": self.restarts,
                "attempt": _latest(*attempts),
                "workers": as_runs(counts),
            }
            self.store.set(f"{prefix}/go", json.dumps(go))
        what = f"node {self.role.first} to open round {self.round}"
        (opened,) = self._await(what, self.store, {f"{prefix}/go": None}, list)
        go = json.loads(opened or b"")
        self.restarts, self.network.master_port.serves_workers = go["restarts"], go["serves"]
        told = self.job.master_addr or go["addr"]
        self.master_addr = told or self.master_addr
        self._watch.begin(f"{prefix}/verdict", expects_signs=True)
        if self.round == 0:
            self._explore(known=told is not None)
        self._count_attempts(*go["attempt"])
        self.members = Members(Prefixed(prefix, self.store), nodes, self._finish if self.job.roles else None)
        return Round(from_runs(go["workers"]), self.master_addr, go["port"], self.rank)

    def _explore(self, *, known: bool) -> None:
        """Probe the nodes' addresses; the reachable ones decide MASTER_ADDR and this node's interfaces."""
        if self.network.fabric is None:
            return
        from . import exploring

        own: Dict[str, str] = self.network.fabric["interfaces"]
        head, nodes = self.role.first, self.job.max_nodes
        found = exploring.explore(self.store, self.node_rank, nodes, list(own), self._await, head=head)
        if found.master and not known:
            self.master_addr = found.master[0]
        self._address = next(iter(found.usable or own), "")
        interfaces = list(dict.fromkeys(own[address] for address in found.usable))
        self.network.settle(interfaces, f"all {self.job.max_nodes - 1} peers reach this node at")
        if found.cut_off and own and self.node_rank == 0:  # without own addresses, all nodes are on one host
            pairs = ", ".join(f"{one} to {other}" for one, other in found.cut_off[:5])
            more = f" and {len(found.cut_off) - 5} more" if len(found.cut_off) > 5 else ""
            self._tell(
                "warning", message=f"no address connects node {pairs}{more}: communication between them will hang"
            )

    def exchange(self, offer: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Tell the role's nodes what this one offers in this round; what each does, by rank, with host and address."""
        return self._exchange(offer, self.members.store, self.rank, self.role.nodes)

    def meet(self, offer: Dict[str, Any]) -> List[Dict[str, Any]]:
        """The same among the nodes of all roles, once."""
        mine = {**offer, "attempt": self.job.attempt, "why_again": self.job.why_again}
        found = self._exchange(mine, Prefixed("met", self.store), self.node_rank, self.job.max_nodes)
        self._count_attempts(*_latest(*zip(*((each["attempt"], each["why_again"]) for each in found))))
        return found

    def _count_attempts(self, number: int, why: Optional[str]) -> None:
        """Tell the workers which attempt this is, and why there is one."""
        if number:
            self.network.variables.update(DISTLAUNCH_ATTEMPT=str(number), DISTLAUNCH_ATTEMPT_REASON=why or "")

    def _exchange(self, offer: Dict[str, Any], store: Store, rank: int, nodes: int) -> List[Dict[str, Any]]:
        mine = {**offer, "host": self.host, "address": self._address or self.master_addr}
        store.set(f"offer/{rank}", json.dumps(mine))
        store.add("offers", 1)
        if rank == 0:
            what, every = f"what {nodes} nodes offer", range(nodes)
            self._await(what, store, {"offers": nodes}, lambda: absent(store, "offer", every))
            told = store.multi_get([f"offer/{node}" for node in every])
            store.set("offered", offers.pack(told))
        (offered,) = self._await("node 0 to pass on what all nodes offer", store, {"offered": None}, list)
        return offers.unpack(offered or b"")

    def finished(self) -> bool:
        """As in the base class; the verdict of the round decides whether the success or a stop came first."""
        if not super().finished():
            return False
        if self.job.roles and not self._watch.has_reached(
            ROLES_DONE, self.whole.count_done(self.store, self.node_rank)
        ):
            return False
        if self.publish(_DONE)["kind"] != _DONE:
            return False
        self.store.set(OVER, "")
        return True

    def _finish(self) -> None:
        count_finished(self.store, self.role, self.node_rank, f"round/{self.round}/finished")

    def all_succeeded(self) -> bool:
        """Whether that is the verdict of the round; it may arrive shortly after this node's part is done."""
        limit = time.monotonic() + LOST_S
        while self.members.has_finished and self.verdict is None and time.monotonic() < limit:
            time.sleep(POLL_S)
        return self.verdict is not None and self.verdict["kind"] == _DONE

    def restart_requested(self) -> bool:
        """Whether a node has requested a restart: all nodes then stop their workers and join the next round."""
        verdict = self.verdict
        return bool(verdict is not None and verdict["kind"] == "restart")

    def _gather(self, prefix: str) -> None:
        nodes, first = self.role.nodes, self.role.first

        def missing() -> List[str]:
            return [str(first + int(node)) for node in absent(self.store, f"{prefix}/join", range(nodes))]

        self._await(f"{nodes} nodes to join round {self.round}", self.store, {f"{prefix}/joined": nodes}, missing)


def _latest(numbers: Iterable[int], reasons: Iterable[Optional[str]]) -> Tuple[int, Optional[str]]:
    """The attempt of a group: a scheduler that starts nodes one by one counts those of each node separately."""
    told = list(filter(None, reasons))
    return max(numbers), Failure.NODE if Failure.NODE in told else max(told, default=None)
