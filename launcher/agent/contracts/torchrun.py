"""torchrun's contract, the default: what torch's `env://` initialisation and torchelastic's users read."""

from __future__ import annotations

import os
from typing import List

from ._contract import Contract, Member, Variable


class Torchrun(Contract):
    """The variables of torchrun's local_elastic_agent.py."""

    module = "torch"
    torch = True
    exchanges = False

    def variables(self, member: Member) -> List[Variable]:
        """Those that torchrun sets."""
        return of_torch(member)


def of_torch(member: Member) -> List[Variable]:
    """The variables that torchrun sets for a worker (local_elastic_agent.py)."""
    group, ranks, job = member.group, member.ranks, member.job
    ours, agent = "from the order of the nodes, and the number of workers on each", "as torchrun sets it"
    # As in torchrun, but every round has its own store: in one that outlives a restart, workers find stale peers.
    other = "node 0's Python has no torch: rank 0 serves it" if job.serves_store else "rank 0 serves the workers' store"
    served = "node 0 serves the workers' store" if member.served else other
    errors, signals = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE"
    return [
        Variable("LOCAL_RANK", str(ranks.local_rank), ours),
        Variable("RANK", str(ranks.rank), ours),
        Variable("GROUP_RANK", str(group.node_rank), "the node's rank"),
        Variable("ROLE_RANK", str(ranks.role_rank), ours),
        Variable("ROLE_NAME", group.role, "--role"),
        Variable("LOCAL_WORLD_SIZE", str(group.local_world_size), "workers on this node"),
        Variable("WORLD_SIZE", str(ranks.world_size), "workers on all nodes"),
        Variable("GROUP_WORLD_SIZE", str(group.nodes), "nodes"),
        Variable("ROLE_WORLD_SIZE", str(ranks.role_world_size), "workers on all nodes"),
        Variable("MASTER_ADDR", group.master_addr, "an address of node 0 that all nodes reach"),
        Variable("MASTER_PORT", str(group.master_port), "a port on node 0, in use by no other process"),
        Variable("TORCHELASTIC_RESTART_COUNT", str(group.restarts), agent),
        Variable("TORCHELASTIC_MAX_RESTARTS", str(job.max_restarts), "--max-restarts"),
        Variable("TORCHELASTIC_RUN_ID", job.run, "the run's id"),
        Variable("TORCHELASTIC_USE_AGENT_STORE", str(member.served), served),
        Variable(errors, os.environ.get(errors, "1"), agent),
        Variable(signals, os.environ.get(signals, "SIGTERM,SIGINT,SIGHUP,SIGQUIT"), agent),
    ]


CONTRACT = Torchrun()
