"""What the agent and the worker group's process tell each other about hangs. Imported only by type checkers."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


class Act(TypedDict):
    """What node 0 has decided about a hang."""

    rank: int
    """The worker that is to fail: one is enough to end or restart all."""

    cause: Dict[str, Any]
    final: bool
    """Whether the run ends even if restarts are left."""


class Stuck(TypedDict, total=False):
    """Of an exited worker that SIGKILL has not ended: it was given up."""

    stuck: str
    """In the kernel's words, where it is."""


class GroupToAgent(TypedDict, total=False):
    """Identified by `stacks_asked`, `samples`, `moves` or `act`."""

    act: Act

    stacks_asked: int
    """A node asks for the stacks of all nodes; the number of the request."""

    samples: List[List[Dict[str, Any]]]
    """On node 0: what all nodes have answered to two requests."""

    moves: bool
    """On node 0: a worker of another node has written since the last samples."""

    between_s: float
    """With `samples`: the time between the two."""

    recorder: Optional[Dict[str, Any]]
    """The flight recorder of this node's workers, as JSON. With `stacks_asked`: its dumps are asked for, too."""


class AgentToGroup(TypedDict, total=False):
    """Identified by `stacks`, `quiet` or `act`."""

    act: Act

    stacks: Dict[str, Any]
    """The answer: `number`, `host`, `role`, `groups`, what ranks have `used`, and `flight` if dumps were asked for."""

    quiet: bool
    """Whether this node's workers have been silent for `hang_after_s`."""

    final: bool
    """With `cause`: the run ends even if restarts are left."""
