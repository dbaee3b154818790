"""A real MPI world: the user's MPI starts the workers, and gives them their ranks (`launcher/agent/mpi/`)."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ._contract import Contract, Member, Variable
from .env import of_place
from .torchrun import of_torch


class Mpi(Contract):
    """torch's variables are set too, from the ranks that MPI gave."""

    module = "mpi4py"
    torch = True
    mpi = True

    def offer(self, env: Dict[str, str], workers: int) -> Dict[str, Any]:
        """The MPI that this node has."""
        from ..mpi import vendor

        found = self.vendor = vendor.find(env)
        return found.to_json()

    def agree(self, peers: List[Dict[str, Any]]) -> Optional[str]:
        """All nodes need the same MPI."""
        from ..mpi import vendor

        return vendor.disagreement(peers)

    def variables(self, member: Member) -> List[Variable]:
        """torch's, and those that no framework reads."""
        first = member.peers[0]
        started = Variable("DISTLAUNCH_MPI", first["mpi"], f"started by {first['mpirun']}, the same MPI on all nodes")
        return [started, *of_torch(member), *of_place(member)]


CONTRACT = Mpi()
