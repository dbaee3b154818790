"""What this node asks the fork server for: each worker's variables by the run's contract, its CPUs and its terminal."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from .. import contracts
from ..contracts._contract import Member, Variable, fitting, longest
from ..contracts._roles import of_roles
from ..contracts._tracking import of_trackers
from ..job import Job
from ..network import ports
from ..ranks import Group, Ranks, progress_file
from ..schedulers import slurm
from ..system import nvml
from ..system.facts import gpu_count, gpus
from . import flight
from .agent_link import AgentLink
from .nodes import Nodes

if TYPE_CHECKING:
    from ..messages import LentTerminal, WorkerRequest


class Requests:
    """The requests for this node's workers, over all rounds."""

    def __init__(self, job: Job, nodes: Nodes, agent: AgentLink, directory: str) -> None:
        """`directory`: where workers write their error files."""
        self.contract = contracts.load(job.contract)
        self._job, self._nodes, self._agent, self._directory = job, nodes, agent, directory
        self._peers: List[Dict[str, Any]] = []
        self._everyone: List[Dict[str, Any]] = []
        self._offered: Dict[str, Any] = {}
        self._port: Optional[socket.socket] = None
        self.first_rank = 0
        """The number of workers in the roles before this one."""

        self._processors: List[str] = []
        self._ports: List[Dict[str, str]] = []

    def offer(self, workers: int) -> Dict[str, Any]:
        """What this node tells the others, by the contract. Raises `CannotError`."""
        if self._offered:  # the other roles know it from the first round
            return self._offered
        job, env = self._job, dict(os.environ)
        elsewhere = job.kind == "program" or "PYTHON_EXEC" in env  # what another program needs is not known
        framework = self.contract.framework(env) if self.contract.mpi or not elsewhere else ""
        where = slurm.group_of(env)
        offered = {"framework": framework, **self.contract.offer(env, workers)}
        return {**offered, "slurm_group": where} if where else offered

    def meet(self, workers: int) -> None:
        """Tell all roles what this node has, and learn what the others have. Raises `CannotError`."""
        job, nodes = self._job, self._nodes
        if not job.roles or self._everyone:
            return
        self._port = ports.lent() if nodes.rank == 0 else None
        port = ports.port_of(self._port) if self._port else 0
        self._offered = self.offer(workers)
        told = {**self._offered, "workers": workers, "contract": job.contract, "port": port}
        self._everyone = nodes.meet(told)
        self.first_rank = sum(peer["workers"] for peer in self._everyone[: nodes.role.first])

    def begin(self, workers: Sequence[Ranks], peers: Sequence[Dict[str, Any]]) -> None:
        """Prepare a round. `peers`: what each node has offered."""
        self._peers = list(peers)
        self._place(len(workers))
        flight.begin_round(self._job, self._nodes, self.contract, self._directory, self.first_rank)

    def explained(self, group: Group, worker: Ranks) -> Dict[str, Any]:
        """The contract's variables for a worker, with their reasons."""
        kept, too_long = fitting(self._variables(group, worker))
        if too_long:
            names = ", ".join(too_long)
            most = f"{(longest() + 1) >> 10:,} KiB"
            self._agent.event("warning", message=f"workers get no {names}: no variable may have more than {most}")
        variables = [{**each._asdict(), "source": "contract"} for each in kept]
        return {"contract": self._job.contract, "rank": self.rank_of(worker), "variables": variables}

    def rank_of(self, worker: Ranks) -> int:
        """Its rank among all workers of the run, which counts on over all roles."""
        return self.first_rank + worker.rank

    def _place(self, workers: int) -> None:
        """Decide once which CPUs and ports each worker is bound to; modules for that are imported only if needed.

        Raises `ValueError`.
        """
        if not (self._job.numa_binding or self._job.near_nics):
            return
        try:
            self._place_by_gpu(workers)
        except nvml.NoAnswerError as error:
            raise ValueError(str(error)) from error

    def _place_by_gpu(self, workers: int) -> None:
        from ..fabric import placement

        if self._job.numa_binding and len(self._processors) != workers:
            self._processors = placement.processors(self._job.numa_binding, workers)
        if self._job.near_nics and len(self._ports) != workers:
            self._ports = placement.near_ports(workers, gpus(os.environ), os.environ)
            if not any(self._ports):
                self._agent.event(
                    "warning", message="--near-nics: no RDMA ports are nearer to one GPU of this node than others"
                )

    def _variables(self, group: Group, worker: Ranks) -> List[Variable]:
        served = self._nodes.network.master_port.serves_workers
        seen = gpu_count(os.environ, apart=self._job.virtual_local_rank) or 0
        member = Member(self._job, group, worker, seen, served, self._peers, self._everyone)
        slurms = slurm.of_worker(self._job, group, worker, os.environ)
        trackers = of_trackers(self._job, self.rank_of(worker), os.environ)
        return [
            *self.contract.variables(member),
            *of_roles(member),
            *slurms,
            *trackers,
            *self._nodes.whole.hangs.recorders,
        ]

    def of(self, group: Group, worker: Ranks) -> WorkerRequest:
        """The request for a worker."""
        env = {variable.name: variable.value for variable in fitting(self._variables(group, worker))[0]}
        errors = self.error_file(worker.local_rank)
        env.update({"TORCHELASTIC_ERROR_FILE": errors} if self.contract.torch else {})
        env["DISTLAUNCH_RUN_ID"] = self._job.run
        if self._nodes.round:
            env["DISTLAUNCH_ROUND"] = str(self._nodes.round)
        env["DISTLAUNCH_DEADLINE_FILE"] = os.path.join(self._directory, "deadline")
        if self._job.samples_s:
            name = progress_file(self._nodes.round, worker.local_rank)
            env["DISTLAUNCH_PROGRESS_FILE"] = os.path.join(self._directory, name)
        env.update(self._nodes.network.variables)
        env.update(self._ports[worker.local_rank] if self._ports else {})
        if self._job.virtual_local_rank:
            from ..fabric import placement

            env.update({"LOCAL_RANK": "0"} if self.contract.torch else {}, **placement.own_gpu(worker.local_rank))
        request: WorkerRequest = {
            "rank": self.rank_of(worker),
            "local_rank": worker.local_rank,
            "round": self._nodes.round,
            "env": env,
            "error_file": errors,
        }
        if self._processors:
            request["cpus"] = self._processors[worker.local_rank]
        lent = _streams_of(self._job, self.rank_of(worker), worker.world_size + len(self._everyone))
        if lent is not None:
            request["terminal"] = lent
            if "TERM" not in os.environ:
                env["TERM"] = lent["term"]
        return request

    def error_file(self, local_rank: int) -> str:
        """The file to which a worker writes the exception that ended it."""
        return os.path.join(self._directory, "errors", f"{self._nodes.round}-{local_rank}.json")


def _streams_of(job: Job, rank: int, world_size: int) -> Optional[LentTerminal]:
    """The request to `streams.made` for this worker; None: an empty stdin, and pipes."""
    if job.terminal is None or job.array:
        return None
    lent, stdin = job.terminal, job.terminal["stdin"]
    mine = lent["rank"] == rank and (world_size == 1 or not lent.get("if_alone"))
    reads = mine if lent["interactive"] else stdin == "passed" or (mine and world_size == 1)
    stdout, stderr = mine and lent["stdout"], mine and lent["stderr"]
    if (not reads or stdin == "null") and not (stdout or stderr):
        return None
    return {**lent, "stdout": stdout, "stderr": stderr, "stdin": stdin if reads else "null"}
