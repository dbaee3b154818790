"""What a contract decides. A new one is a module here that ends in `CONTRACT = ...`; nothing else names it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from ..failures import CannotError
from ..named_tuple import NamedTuple

if TYPE_CHECKING:
    from ..job import Job
    from ..ranks import Group, Ranks


_HOSTS = "_HOSTS"
"""So end the names of lists that a worker can do without."""


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

    everyone: Sequence[Dict[str, Any]] = ()
    """The same for the nodes of all roles, with `workers` and `contract`; empty if the run has no roles."""


def disagreement(peers: Sequence[Dict[str, Any]]) -> Optional[str]:
    """Which node has another framework than node 0; None: all have the same."""
    first = peers[0]
    others = [(node, peer) for node, peer in enumerate(peers) if peer["framework"] != first["framework"]]
    if not others:
        return None
    node, peer = others[0]
    more = f"; {len(others) - 1} more nodes differ" if len(others) > 1 else ""
    return f"node {node} ({peer['host']}) has {_of(peer)}, and node 0 ({first['host']}) has {_of(first)}{more}"


def longest() -> int:
    """How many bytes a text `NAME=VALUE` may have: the kernel starts no program with a longer one.

    That is 128 KiB with the end of the text on most hosts, and 2 MiB with the large pages of some ARM hosts.
    """
    return 32 * os.sysconf("SC_PAGESIZE") - 1


def fitting(variables: Sequence[Variable]) -> Tuple[List[Variable], List[str]]:
    """Without lists of hosts that no program can be started with, and the names of these.

    Raises `ValueError` if another variable is too long.
    """
    long = [each for each in variables if len(os.fsencode(f"{each.name}={each.value}")) > longest()]
    needed = next((each for each in long if not each.name.endswith(_HOSTS)), None)
    if needed:
        raise ValueError(
            f"{needed.name} would have {len(needed.value):,} characters, "
            f"and the kernel takes {(longest() + 1) >> 10:,} KiB: use fewer workers"
        )
    return [each for each in variables if each not in long], [each.name for each in long]


def with_port(address: str, port: int) -> str:
    """`ADDRESS:PORT`, as URLs have it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _of(peer: Dict[str, Any]) -> str:
    where = f", {peer['mpirun']}" if "mpirun" in peer else ""
    return f"{peer['framework']}{where}"


def version_of(module: str) -> str:
    """The version of the package that has this module."""
    from importlib import metadata  # few contracts need it

    for name in (module, f"{module}-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "of an unknown version"


class Contract:
    """How workers of one framework learn their place among all workers."""

    module: Optional[str] = None
    """The module that tells which interpreter to take if none is named."""

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

    def framework(self, env: Dict[str, str]) -> str:
        """The framework that this node has and its version, which all nodes must have; empty if it needs none.

        `env`: the variables of its workers. Raises `CannotError` if the node lacks it.
        """
        if not self.required or not self.module:
            return ""
        if not importlib.util.find_spec(self.module):
            raise CannotError(f"{sys.executable} has no {self.module}; --python PATH names another interpreter")
        return f"{self.module} {version_of(self.module)}"

    def offer(self, env: Dict[str, str], workers: int) -> Dict[str, Any]:
        """What else this node tells all others. Raises `CannotError`."""
        return {}

    def variables(self, member: Member) -> List[Variable]:
        """The variables that a worker gets."""
        raise NotImplementedError

    def serves(self, job: Job, ranks: Ranks) -> bool:
        """Whether this worker serves the others until all of them are done, and is ended then."""
        return False
