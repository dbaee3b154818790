"""A real MPI world: the user's MPI starts the workers, and gives them their ranks (`launcher/agent/mpi/`)."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ._contract import Contract, Member, Variable
from .env import of_place
from .torchrun import of_torch


class Mpi(Contract):
    """torch's variables are set too, from the ranks that MPI gave."""

    module = "mpi4py"
    torch = True
    mpi = True

    def framework(self, env: Dict[str, str]) -> str:
        """The MPI."""
        from ..mpi import vendor

        super().framework(env)
        found = self.vendor = vendor.find(env)
        return f"{found.name} {found.version}"

    def offer(self, env: Dict[str, str], workers: int) -> Dict[str, Any]:
        """Where it is, and whether this node needs its components for libfabric."""
        from ..fabric.sources import Tree
        from ..mpi import libfabric

        unused = libfabric.is_unused(self.vendor, env, Tree())
        return {"mpirun": self.vendor.mpirun, "slurm": env.get("SLURMD_NODENAME", ""), "libfabric": not unused}

    def variables(self, member: Member) -> List[Variable]:
        """torch's, and those that no framework reads."""
        first = member.peers[0]
        started = Variable(
            "DISTLAUNCH_MPI", first["framework"], f"started by {first['mpirun']}, the same MPI on all nodes"
        )
        return [started, *without_libfabric(member.peers), *of_torch(member), *of_place(member)]


def without_libfabric(peers: Sequence[Dict[str, Any]]) -> List[Variable]:
    """Leave out Open MPI's components for libfabric, if no node needs them. `peers`: what the nodes have offered."""
    if any(peer["libfabric"] for peer in peers):
        return []
    from ..mpi import libfabric

    why = "no node has an RDMA device; Open MPI would look for one, and wait a second"
    return [Variable(name, value, why) for name, value in libfabric.COMPONENTS.items()]


CONTRACT = Mpi()
