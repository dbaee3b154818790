"""What a contract decides. A new one is a module here that ends in `CONTRACT = ...`; nothing else names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

if TYPE_CHECKING:
    from ..job import Job
    from ..ranks import Group, Ranks


class Variable(NamedTuple):
    """A variable of one worker, and why it has this value."""

    name: str
    value: str
    reason: str


class Member(NamedTuple):
    """A worker, as its contract sees it."""

    job: Job
    group: Group
    ranks: Ranks
    gpus: int
    """How many GPUs all workers of its node see."""

    served: bool
    """Whether the agent serves the store of torch's workers at the master port."""

    peers: List[Dict[str, Any]]
    """What each node has offered, by node rank, with `host` and `address`; empty if the contract exchanges nothing."""


class CannotError(Exception):
    """This node lacks something that the contract needs; the message begins with what."""


class Contract:
    """How workers of one framework learn their place among all workers."""

    module: Optional[str] = None
    """The module by which an interpreter is chosen, and without which one that is chosen can still do."""

    required = False
    """Whether every node needs the module."""

    torch = False
    """Whether the workers meet as torch's do: over a store at the master port, which the agent serves."""

    exchanges = True
    """Whether the nodes tell one another what they offer before the workers start."""

    mpi = False
    """Whether an MPI starts the workers, and gives them their ranks."""

    vendor: Any = None
    """That MPI, once it is known."""

    def check(self, ps: int, tasks: Optional[int]) -> None:
        """Raise `ValueError` for a number of parameter servers that it cannot start. `tasks`: all workers, if known."""
        if ps:
            raise ValueError(f"ps {ps}: only --contract tensorflow has parameter servers")

    def offer(self, env: Dict[str, str], workers: int) -> Dict[str, Any]:
        """What this node tells all others, given its workers' variables. Raises `CannotError`."""
        return {}

    def agree(self, peers: List[Dict[str, Any]]) -> Optional[str]:
        """Why these nodes cannot run together, or None."""
        return None

    def variables(self, member: Member) -> List[Variable]:
        """The variables that a worker gets."""
        raise NotImplementedError

    def serves(self, job: Job, ranks: Ranks) -> bool:
        """Whether this worker serves the others until all of them are done, and is ended then."""
        return False
