"""One node's workers in an elastic run: torchelastic's agent, with workers that the fork server starts.

Rendezvous, node ranks and the loop are torchelastic's. Ours are only the calls that number, start, watch and stop
workers, and the common end of all nodes.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Dict, List

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError
from torch.distributed.elastic.rendezvous.api import RendezvousError as TorchRendezvousError

from ..job import Job
from ..ranks import Group, Ranks, ranks_of
from ..store.interface import GoneError
from .agent_link import AgentLink
from .dynamic_rendezvous import ElasticNodes
from .errors import NotNeededError, RendezvousError
from .torchelastic import NodeAgent
from .workers import MONITOR_S, Workers

if TYPE_CHECKING:
    from ..messages import ExitedWorker, GroupServer


class ElasticGroup:
    """One node's part of the worker group."""

    def __init__(
        self,
        job: Job,
        nodes: ElasticNodes,
        count: int,
        server: GroupServer,
        agent: AgentLink,
        directory: str,
    ) -> None:
        self._workers = Workers(job, nodes, server, agent, directory)
        nodes.own_workers = count
        spec = WorkerSpec(
            role=job.role,
            local_world_size=count,
            rdzv_handler=nodes,
            entrypoint=job.command[0],
            args=tuple(job.command[1:]),
            max_restarts=job.max_restarts,
            monitor_interval=1e-6,  # `look` itself waits, and wakes when something happens
        )
        self._agent = _NodeAgent(spec, nodes, self._workers)

    def run(self) -> bool:
        """Run until the workers of all nodes have exited; whether they succeeded.

        Raises `NotNeededError`, `RendezvousError`, and `GoneError` if the connection to the store is lost.
        """
        try:
            self._workers.wait_until_ready()
            return not self._agent.run().is_failed()
        except RendezvousClosedError as error:
            raise NotNeededError from error
        except RendezvousConnectionError as error:
            raise GoneError(str(error)) from error
        except TorchRendezvousError as error:
            raise RendezvousError(str(error)) from error


class _NodeAgent(NodeAgent):
    """torchelastic's agent, with workers that are children of the fork server."""

    def __init__(self, spec: WorkerSpec, nodes: ElasticNodes, workers: Workers) -> None:
        super().__init__(spec)
        self._nodes = nodes
        self._workers = workers

    def start_workers(self, group: WorkerGroup) -> Dict[int, Any]:
        return dict(self._workers.start(self._group(group), _ranks(group)))

    def end_workers(self, number: signal.Signals, *, last: bool) -> None:
        if not last or not self._nodes.stopping.is_set():  # else the agent ends them, within the remaining grace time
            self._workers.end(number)

    def look(self) -> RunResult:
        self._workers.take_all(MONITOR_S)
        self._workers.stop_if_asked()
        failed = self._workers.failed()
        if failed:
            self._workers.tell_peers(restarts=self.restarts)
            return RunResult(state=WorkerState.FAILED, failures={r: self._failure(a) for r, a in failed.items()})
        if self._workers.ended_by_themselves() and self._nodes.finished():
            values = {about["rank"]: None for about in self._workers.exited.values()}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        return RunResult(state=WorkerState.HEALTHY)

    def met(self, group: WorkerGroup) -> None:
        self._workers.begin_round(self._group(group), _ranks(group))

    def ranks(self, node_rank: int) -> List[Worker]:
        own = ranks_of(node_rank, self._nodes.counts)
        return [Worker(r.local_rank, r.rank, r.role_rank, r.world_size, r.role_world_size) for r in own]

    def _group(self, group: WorkerGroup) -> Group:
        addr, port = str(group.master_addr), int(group.master_port or 0)
        size = group.spec.local_world_size
        nodes, role = group.group_world_size or 1, group.spec.role
        return Group(group.group_rank or 0, nodes, size, role, addr, port, self.restarts, self._nodes.counts)

    def _failure(self, about: ExitedWorker) -> ProcessFailure:
        path = self._workers.requests.error_file(about["local_rank"])
        return ProcessFailure(local_rank=about["local_rank"], pid=about["pid"], exitcode=about["code"], error_file=path)


def _ranks(group: WorkerGroup) -> List[Ranks]:
    return [
        Ranks(worker.global_rank, worker.local_rank, worker.role_rank, worker.world_size, worker.role_world_size)
        for worker in group.workers
    ]
