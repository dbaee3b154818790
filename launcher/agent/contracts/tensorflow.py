"""TF_CONFIG: each task has a port of its own, which all tasks know before any of them starts.

Without `--ps`, all tasks are workers, as `MultiWorkerMirroredStrategy` expects. With `--ps K`, for
`ParameterServerStrategy`, rank 0 is the chief, which runs the training loop, the last K ranks are parameter servers,
and those between are workers. Workers and parameter servers serve the chief and never end by themselves: the run ends
with the chief. Several roles of a run are one cluster, if their names are types of tasks.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from .. import roles
from ..failures import CannotError
from ..network import ports
from ._contract import Contract, Member, Variable, with_port
from ._roles import peers_of
from .env import of_place

if TYPE_CHECKING:
    from ..job import Job
    from ..ranks import Ranks


Task = Tuple[str, int]
Cluster = Dict[str, List[str]]
EVALUATOR = "evaluator"
"""It is outside the cluster that it evaluates."""

TYPES = ("chief", "worker", "ps", EVALUATOR)
"""The types of tasks."""


class Tensorflow(Contract):
    """A cluster of `tf.distribute`."""

    module = "tensorflow"
    required = True

    def __init__(self) -> None:
        self._held: List[socket.socket] = []
        """The ports of this node's tasks: no other process can take one before its task does."""

    def check(self, ps: int, tasks: Optional[int]) -> None:
        """A cluster with parameter servers also has a chief and a worker."""
        if ps and tasks is not None and tasks < ps + 2:
            raise ValueError(f"ps {ps}: with a chief and a worker these are {ps + 2} tasks, and the run has {tasks}")

    def offer(self, env: Dict[str, str], workers: int) -> Dict[str, Any]:
        """A free port for each task of this node."""
        for sock in self._held:
            sock.close()
        try:
            self._held = [ports.lent() for _ in range(workers)]
        except OSError as error:
            raise CannotError(f"no free port for each of {workers} tasks of TensorFlow: {error.strerror}") from error
        return {"ports": [ports.port_of(sock) for sock in self._held]}

    def variables(self, member: Member) -> List[Variable]:
        """The cluster, and the worker's task in it."""
        (kind, index), cluster = _of_roles(member) or _of_ranks(member)
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        tasks = sum(map(len, cluster.values()))
        reason = f"{kind} {index} of {tasks} tasks, each with a free port that its node holds for it"
        return [*of_place(member), Variable("TF_CONFIG", config, reason)]

    def serves(self, job: Job, ranks: Ranks) -> bool:
        """With parameter servers, all but the chief."""
        return job.ps > 0 and ranks.rank > 0


def _kind(job: Job, rank: int, world: int) -> Tuple[str, int]:
    """The type and index of a task."""
    if not job.ps:
        return "worker", rank
    if rank == 0:
        return "chief", 0
    first = world - job.ps
    return ("ps", rank - first) if rank >= first else ("worker", rank - 1)


def _of_ranks(member: Member) -> Tuple[Task, Cluster]:
    """The worker's task and the cluster, if one group of workers is all of it."""
    addresses = _addresses(member.peers)
    cluster: Cluster = {}
    for rank, address in enumerate(addresses):
        cluster.setdefault(_kind(member.job, rank, len(addresses))[0], []).append(address)
    return _kind(member.job, member.ranks.rank, len(addresses)), cluster


def _of_roles(member: Member) -> Optional[Tuple[Task, Cluster]]:
    """The same if several roles form one cluster: those of this contract, with the names of its types of tasks."""
    every = [role for role in roles.of(member.job) if role.name in TYPES] if member.everyone else []
    nodes = {role.name: peers_of(role, member.everyone) for role in every}
    nodes = {name: peers for name, peers in nodes.items() if peers[0]["contract"] == "tensorflow"}
    if len(nodes) < 2 or member.job.role not in nodes:
        return None
    cluster = {name: _addresses(peers) for name, peers in nodes.items() if name != EVALUATOR}
    return (member.job.role, member.ranks.rank), cluster


def _addresses(peers: Sequence[Dict[str, Any]]) -> List[str]:
    return [with_port(peer["address"], port) for peer in peers for port in peer["ports"]]


CONTRACT = Tensorflow()
