"""`jax.distributed.initialize()` works without arguments.

JAX reads the coordinator's address from a variable, but no variable for the number and the rank of the process: it
takes them from a cluster that it detects. The first one that it looks for is Open MPI's, by three variables
(jax/_src/clusters/ompi_cluster.py), so they are set although there is no MPI.
"""

from __future__ import annotations

from typing import List

from ._contract import Contract, Member, Variable, with_port
from .env import of_place

_LIKE_MPI = "JAX reads it as Open MPI's: it has no variable of its own for that"


class Jax(Contract):
    """One process per node with all of its GPUs, or one per GPU, or anything between."""

    module = "jax"
    required = True

    def variables(self, member: Member) -> List[Variable]:
        """The coordinator, the ranks, and the devices of the process."""
        group, ranks = member.group, member.ranks
        where = with_port(group.master_addr, group.master_port)
        scheme = "tcp6" if ":" in group.master_addr else "tcp"
        found = [
            *of_place(member),
            Variable("JAX_COORDINATOR_ADDRESS", where, "rank 0 serves it, on a free port of node 0"),
            Variable("OMPI_MCA_orte_hnp_uri", f"0.0;{scheme}://{where}", "JAX detects a cluster by it"),
            Variable("OMPI_COMM_WORLD_SIZE", str(ranks.world_size), _LIKE_MPI),
            Variable("OMPI_COMM_WORLD_RANK", str(ranks.rank), _LIKE_MPI),
            Variable("OMPI_COMM_WORLD_LOCAL_RANK", str(ranks.local_rank), _LIKE_MPI),
        ]
        return found + _devices(member)


def _devices(member: Member) -> List[Variable]:
    """The process's share of the GPUs that all processes of its node see; JAX's default is one each."""
    each, rest = divmod(member.gpus, member.group.local_world_size)
    if not each or rest:
        return []
    first = 0 if member.job.virtual_local_rank else member.ranks.local_rank * each
    each = 1 if member.job.virtual_local_rank else each
    ids = ",".join(map(str, range(first, first + each)))
    return [Variable("JAX_LOCAL_DEVICE_IDS", ids, f"its share of the node's {member.gpus} GPUs")]


CONTRACT = Jax()
