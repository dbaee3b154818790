"""One node's workers in a run whose ranks an MPI starts: as `FixedGroup`, but each worker waits for its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..job import Job
from ..mpi.hub import Hub
from ..mpi.world import Node, World, hub_name
from ..ranks import Group, Ranks
from .agent_link import AgentLink
from .rendezvous import FixedNodes
from .static import FixedGroup

if TYPE_CHECKING:
    from ..messages import Cause, GroupServer, ServerSetup


class MpiGroup(FixedGroup):
    """One node's part of the worker group, in an MPI world of its own for each round."""

    def __init__(self, job: Job, nodes: FixedNodes, server: GroupServer, agent: AgentLink, setup: ServerSetup) -> None:
        super().__init__(job, nodes, setup["workers"], server, agent, setup["scratch"])
        self._server = server
        self._node = Node(job, nodes.node_rank, nodes.host, setup["directory"], setup["scratch"])
        self._hub = Hub(hub_name(self._node))
        self._world: Optional[World] = None

    def _ranks(self, group: Group, peers: List[Dict[str, Any]]) -> List[Ranks]:
        """Those that the MPI gives, once it has started all of this node's ranks."""
        vendor = self._workers.requests.contract.vendor
        assert vendor is not None
        world = self._world = World(self._node, vendor, self._hub, self._nodes.members.store, self._tick)
        self._workers.complete, self._workers.on_exit = world.complete, world.exited
        return world.start(group, peers)

    def _tick(self) -> None:
        self._workers.take_all(0.0)
        self._workers.stop_if_asked()

    def _look(self) -> Optional[Cause]:
        assert self._world is not None
        messages = self._world.attend()
        self._workers.excused = self._world.ended
        for message in messages:
            self._server.send(message)
        return self._world.failure()

    def _is_over(self) -> bool:
        return self._world is None or self._world.over()

    def _end(self, number: int) -> None:
        super()._end(number)
        if self._world is not None:
            self._world.end()
