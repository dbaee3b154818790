"""One node's workers in a run with a fixed number of nodes: started, watched and restarted with those of all nodes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, List

from ..job import Job
from .agent_link import AgentLink
from .ranks import Group, Ranks, ranks_of
from .rendezvous import FixedNodes
from .workers import MONITOR_S, Workers

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
        group = Group(node_rank, nodes, self._count, self._job.role, met.master_addr, met.master_port, restarts)
        ranks: List[Ranks] = ranks_of(node_rank, met.workers)
        self._workers.begin_round(group, ranks)
        self._workers.start(group, ranks)

    def _restart(self) -> None:
        self._workers.end(signal.SIGTERM)
        self._start()
