"""A real MPI world: the user's MPI starts the workers, and gives them their ranks (`launcher/agent/mpi/`)."""

from __future__ import annotations

from typing import Any, Dict, List

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
        """Where it is."""
        return {"mpirun": self.vendor.mpirun, "slurm": env.get("SLURMD_NODENAME", "")}

    def variables(self, member: Member) -> List[Variable]:
        """torch's, and those that no framework reads."""
        first = member.peers[0]
        started = Variable(
            "DISTLAUNCH_MPI", first["framework"], f"started by {first['mpirun']}, the same MPI on all nodes"
        )
        return [started, *of_torch(member), *of_place(member)]


CONTRACT = Mpi()
