"""Horovod over MPI: `hvd.init()` takes ranks and communication from the MPI world that it finds itself in.

Horovod 0.28, the last release, does not build with torch 2.1 or newer; with an older torch, or TensorFlow, it does.
"""

from __future__ import annotations

from typing import List

from ._contract import Member, Variable
from .mpi import Mpi


class Horovod(Mpi):
    """Its own variables, as `horovodrun` sets them, beside those of the contract mpi."""

    module = "horovod"
    required = True

    def variables(self, member: Member) -> List[Variable]:
        """The ranks under Horovod's names, and MPI as its controller."""
        group, ranks = member.group, member.ranks
        ours = "from the rank that MPI gave"
        found = [
            Variable("HOROVOD_RANK", str(ranks.rank), ours),
            Variable("HOROVOD_SIZE", str(ranks.world_size), "workers on all nodes"),
            Variable("HOROVOD_LOCAL_RANK", str(ranks.local_rank), ours),
            Variable("HOROVOD_LOCAL_SIZE", str(group.local_world_size), "workers on this node"),
            Variable("HOROVOD_CROSS_RANK", str(group.node_rank), "the node's rank"),
            Variable("HOROVOD_CROSS_SIZE", str(group.nodes), "nodes"),
            Variable("HOROVOD_CONTROLLER", "mpi", "MPI has started the workers"),
            Variable("HOROVOD_CPU_OPERATIONS", "mpi", "MPI has started the workers"),
        ]
        return [*super().variables(member), *found]


CONTRACT = Horovod()
