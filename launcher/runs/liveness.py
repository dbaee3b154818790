"""What a cluster itself reports about a run's nodes, independently of their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from launcher.agent.named_tuple import NamedTuple
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.runs.node_report import Cause

NodeState = Literal["pending", "running", "ended", "unknown"]


class Unread(NamedTuple):
    """A node whose stream is not brought here."""

    host: str
    result: str | None
    """By its agent's exit code; None while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What the backend, not the agent stream, reports about a run's nodes."""

    nodes: tuple[NodeState, ...]
    detail: str = ""
    """Why the run is pending, or how a node ended, in the backend's words."""

    causes: Mapping[int, Cause] = field(default_factory=dict)
    """What the cluster knows about a node's end, by node rank: `class` and `message` as in docs/agent-stream.md.

    Used if the agent had no time to report a cause, or was told to stop without knowing why.
    """

    succeeded: bool = False
    """The cluster has recorded that the run as a whole succeeded, whatever is left of its nodes' streams."""

    unread: Mapping[int, Unread] = field(default_factory=dict)
    """What the cluster knows of nodes whose streams are not brought here: those that run, or whose result is known."""

    @property
    def told(self) -> dict[str, Any]:
        """What an outcome takes into account besides the nodes' states."""
        return {"detail": self.detail, "causes": self.causes, "succeeded": self.succeeded}
