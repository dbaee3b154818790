"""One node's workers in a run whose ranks an MPI starts: as `WorkerGroup`, but each worker waits for its rank."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set

from ..cause import of_node
from ..job import Job
from ..mpi import library
from ..mpi import vendor as vendors
from ..mpi.hub import Hub
from ..mpi.world import Node, World, hub_name
from ..ranks import Group, Ranks
from .agent_link import AgentLink
from .errors import RestartRequestedError
from .rendezvous import FixedNodes
from .worker_group import WorkerGroup
from .workers import MONITOR_S

if TYPE_CHECKING:
    from ..messages import Cause, GroupServer, ServerSetup

_LOOK_S = 5.0


class MpiGroup(WorkerGroup):
    """One node's part of the worker group, in an MPI world of its own for each round."""

    def __init__(self, job: Job, nodes: FixedNodes, server: GroupServer, agent: AgentLink, setup: ServerSetup) -> None:
        super().__init__(job, nodes, setup["workers"], server, agent, setup["scratch"])
        self._server = server
        self._node = Node(job, nodes.node_rank, nodes.rank, nodes.host, setup["directory"], setup["scratch"])
        self._hub = Hub(hub_name(self._node))
        by_slurm = nodes.node_rank == 0 and not job.shares_host
        vendors.look_ahead(dict(os.environ), slurm=by_slurm)  # while it meets the other nodes
        self._world: Optional[World] = None
        self._known: Set[int] = set()
        """Workers that have loaded an MPI, by pid."""

        self._look_at, self._pause_s = 0.0, MONITOR_S

    def _ranks(self, group: Group, peers: List[Dict[str, Any]]) -> List[Ranks]:
        """Those that the MPI gives, once it has started all of this node's ranks."""
        vendor = self._workers.requests.contract.vendor
        assert vendor is not None
        self._look_at, self._pause_s = 0.0, MONITOR_S
        store, first = self._nodes.members.store, self._workers.requests.first_rank
        world = self._world = World(self._node, vendor, self._hub, store, self._tick, first)
        self._workers.starter = world
        return world.start(group, peers)

    def _tick(self) -> None:
        self._workers.take_all(0.0)
        self._workers.stop_if_asked()
        if self._nodes.restart_requested():  # without the others, the MPI starts no more ranks
            raise RestartRequestedError

    def _look(self) -> Optional[Cause]:
        assert self._world is not None
        why = self._stranger()
        if why:
            return why
        for message in self._world.attend():
            self._server.send(message)
        return self._world.failure()

    def _stranger(self) -> Optional[Cause]:
        """Why a worker is not in the world that mpirun has made, once it has loaded an MPI."""
        now, vendor = time.monotonic(), self._workers.requests.contract.vendor
        if now < self._look_at:
            return None
        unknown = [about for pid, about in self._workers.running.items() if pid not in self._known]
        for about in unknown:
            found = library.of_process(about["pid"])
            why = library.stranger(found, vendor)
            if why:
                node, host = self._node.node, self._node.host
                cause = of_node(host=host, node=node, message=f"rank {about['rank']} {why}", time=time.time())
                return {**cause, "rank": about["rank"]}
            if found:
                self._known.add(about["pid"])
        self._pause_s = min(2 * self._pause_s, _LOOK_S)  # a program may load it late, or never
        self._look_at = now + self._pause_s
        return None

    def _is_over(self) -> bool:
        return self._world is None or self._world.over()

    def _end(self, number: int) -> None:
        super()._end(number)
        if self._world is not None:
            self._world.end()
