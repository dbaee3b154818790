"""The ranks of workers, and the environment variables that carry them, named as in torchrun."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple

from ..job import Job


class Ranks(NamedTuple):
    """One worker's ranks and world sizes, as torchrun defines them."""

    rank: int
    local_rank: int
    role_rank: int
    world_size: int
    role_world_size: int


class Group(NamedTuple):
    """What all workers of this node have in common in one round."""

    node_rank: int
    nodes: int
    local_world_size: int
    role: str
    master_addr: str
    master_port: int
    restarts: int


def ranks_of(node_rank: int, workers: List[int]) -> List[Ranks]:
    """The ranks of a node's workers, given the number of workers on each node."""
    first, world = sum(workers[:node_rank]), sum(workers)
    return [Ranks(first + local, local, first + local, world, world) for local in range(workers[node_rank])]


def variables(group: Group, worker: Ranks, job: Job, served: bool) -> Dict[str, str]:
    """The variables that torchrun sets for a worker (local_elastic_agent.py).

    `served`: the agent serves the workers' store.
    """
    return {
        "LOCAL_RANK": str(worker.local_rank),
        "RANK": str(worker.rank),
        "GROUP_RANK": str(group.node_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": group.role,
        "LOCAL_WORLD_SIZE": str(group.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.nodes),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": group.master_addr,
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(group.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        "TORCHELASTIC_RUN_ID": job.run,
        # As in torchrun, but every round has its own store: in one that outlives a restart, workers find stale peers.
        "TORCHELASTIC_USE_AGENT_STORE": str(served),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": os.environ.get(
            "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
        ),
        "DISTLAUNCH_RUN_ID": job.run,
    }
