"""One node's workers in a run with a fixed number of nodes: started, watched and restarted with those of all nodes."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List

from .. import cause
from ..contracts._contract import CannotError
from ..job import Job
from ..ranks import Group, Ranks, ranks_of
from .agent_link import AgentLink
from .rendezvous import FixedNodes
from .workers import MONITOR_S, PeerEndedError, Workers

if TYPE_CHECKING:
    from ..messages import GroupServer


class FixedGroup:
    """One node's part of the worker group, round by round, with the states of torchelastic's `SimpleElasticAgent`."""

    def __init__(
        self, job: Job, nodes: FixedNodes, count: int, server: GroupServer, agent: AgentLink, directory: str
    ) -> None:
        self._job = job
        self._nodes = nodes
        self._count = count
        self._workers = Workers(job, nodes, server, agent, directory)

    def run(self) -> bool:
        """Run until the workers of all nodes have exited; whether they succeeded."""
        try:
            self._workers.wait_until_ready()
            self._start()
            while True:
                self._workers.take_all(MONITOR_S)
                self._workers.stop_if_asked()
                if self._workers.failed():
                    if not self._workers.tell_peers(restarts=self._nodes.restarts):
                        return False
                    self._restart()
                elif self._workers.ended_by_themselves() and (self._nodes.finished() or self._nodes.stopping.leaves):
                    return True
                elif self._nodes.restart_requested():
                    self._restart()
        finally:
            if not self._nodes.stopping.is_set():  # else the agent ends the workers, within the remaining grace time
                self._workers.end(signal.SIGTERM)

    def _start(self) -> None:
        """Meet the other nodes, then start the workers."""
        met = self._nodes.next_rendezvous(self._count)
        nodes, node_rank = len(met.workers), self._nodes.node_rank
        restarts = self._nodes.restarts
        addr, port, counts = met.master_addr, met.master_port, met.workers
        group = Group(node_rank, nodes, self._count, self._job.role, addr, port, restarts, counts)
        ranks: List[Ranks] = ranks_of(node_rank, counts)
        self._workers.begin_round(group, ranks, self._agree(counts))
        self._workers.start(group, ranks)

    def _agree(self, counts: List[int]) -> List[Dict[str, Any]]:
        """Exchange what the contract needs with all nodes. Raises `PeerEndedError` if a node cannot do its part."""
        contract, nodes, against = self._workers.requests.contract, self._nodes, None
        if not contract.exchanges:
            return []
        try:
            contract.check(self._job.ps, sum(counts))
            peers = nodes.exchange(self._workers.requests.offer(self._count))
            against = contract.agree(peers) if nodes.node_rank == 0 else None
        except (CannotError, ValueError) as error:
            against = str(error)
        if against:
            why = cause.of_node(host=nodes.host, node=nodes.node_rank, message=against, time=time.time())
            raise PeerEndedError(nodes.publish("fail", cause=why))
        return peers

    def _restart(self) -> None:
        self._workers.end(signal.SIGTERM)
        self._start()
