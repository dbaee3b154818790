"""What a cluster itself reports about a run's nodes, independently of their agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.runs.node_report import Cause

NodeState = Literal["pending", "running", "ended", "unknown"]


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

    exits: Mapping[int, str] = field(default_factory=dict)
    """Results of ended nodes whose streams are not brought here, by the exit codes of their agents."""

    @property
    def told(self) -> dict[str, Any]:
        """What an outcome takes into account besides the nodes' states."""
        return {"detail": self.detail, "causes": self.causes, "succeeded": self.succeeded}
