"""One node's workers: started, watched and restarted with those of all nodes."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .. import cause
from ..contracts._contract import disagreement
from ..failures import CannotError
from ..job import Job
from ..ranks import Group, Ranks, ranks_of
from ..roles import IGNORE
from .agent_link import AgentLink
from .errors import PeerEndedError, RestartRequestedError
from .workers import MONITOR_S, Workers

if TYPE_CHECKING:
    from ..messages import Cause, GroupServer
    from .nodes import Nodes


class WorkerGroup:
    """One node's part of the worker group, round by round, with the states of torchelastic's `SimpleElasticAgent`."""

    def __init__(
        self,
        job: Job,
        nodes: Nodes,
        count: int,
        server: GroupServer,
        agent: AgentLink,
        directory: str,
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
                why = self._look()
                if (why or self._workers.failed()) and not self._ignored(why):
                    if not self._workers.tell_peers(restarts=self._nodes.restarts, why=why):
                        return False
                    self._restart()
                elif self._are_done() and (self._nodes.finished() or self._nodes.stopping.leaves):
                    return True
                elif self._nodes.restart_requested():
                    self._restart()
        finally:
            if not self._nodes.stopping.is_set():  # else the agent ends the workers, within the remaining grace time
                self._end(signal.SIGTERM)

    # -- what an MPI does in another way ------------------------------------------------------------------------------

    def _ranks(self, group: Group, peers: List[Dict[str, Any]]) -> List[Ranks]:  # noqa: ARG002 - for subclasses
        """The ranks of this node's workers; those of the plan. `peers`: what the nodes offer."""
        return ranks_of(group.node_rank, group.counts)

    def _look(self) -> Optional[Cause]:
        """What else has failed than a worker, if anything has; called in every turn."""
        return None

    def _is_over(self) -> bool:
        """Whether all has ended that ends after the workers."""
        return True

    def _end(self, number: int) -> None:
        """End the workers, beginning with this signal."""
        self._workers.end(number)

    # -- a round ------------------------------------------------------------------------------------------------------

    def _are_done(self) -> bool:
        return self._workers.ended_by_themselves() and self._is_over()

    def _start(self) -> None:
        """Begin a round; the next one, if a node has requested a restart before this one's workers are started."""
        while True:
            try:
                return self._begin()
            except RestartRequestedError:
                self._end(signal.SIGTERM)

    def _begin(self) -> None:
        """Meet the other nodes, then start the workers."""
        met = self._nodes.next_rendezvous(self._count)
        addr, port, counts = met.master_addr, met.master_port, met.workers
        nodes, restarts = len(counts), self._nodes.restarts
        group = Group(met.rank, nodes, self._count, self._job.role, addr, port, restarts, counts)
        peers, ranks = self._agree(group)
        try:
            self._workers.begin_round(group, ranks, peers)
            self._workers.start(group, ranks)
        except ValueError as error:  # a worker has no GPU or CPU of its own
            raise self._failed(str(error)) from error

    def _agree(self, group: Group) -> Tuple[List[Dict[str, Any]], List[Ranks]]:
        """Exchange what the contract needs with all nodes; what each offers, and the ranks of this node's workers.

        Raises `PeerEndedError` if a node cannot do its part, and `RestartRequestedError`.
        """
        requests, nodes = self._workers.requests, self._nodes
        contract = requests.contract
        try:
            requests.meet(self._count)
            if not contract.exchanges:
                return [], self._ranks(group, [])
            contract.check(self._job.ps, sum(group.counts))
            peers = nodes.exchange(requests.offer(self._count))
            against = disagreement(peers)  # all nodes find the same, so none of them starts workers
            if not against:
                return peers, self._ranks(group, peers)
        except (CannotError, ValueError) as error:
            against = str(error)
        raise self._failed(against)

    def _failed(self, message: str) -> Exception:
        """Tell all nodes that this one cannot do its part; the error that ends it as well, or the round."""
        nodes = self._nodes
        why = cause.of_node(host=nodes.host, node=nodes.node_rank, message=message, time=time.time())
        verdict = nodes.publish("fail", cause=why)
        return RestartRequestedError() if verdict["kind"] == "restart" else PeerEndedError(verdict)

    def _ignored(self, why: Optional[Cause]) -> bool:
        """Whether the failure is to be ignored, as this node's role says; its workers are then done."""
        if self._nodes.role.on_failure != IGNORE:
            return False
        if why:  # an MPI, without which its ranks cannot continue
            self._end(signal.SIGTERM)
        self._workers.forgive(why)
        return True

    def _restart(self) -> None:
        self._end(signal.SIGTERM)
        self._start()
