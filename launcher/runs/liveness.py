"""What a cluster itself says of a run's nodes, whatever their agents say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.runs.node_report import Cause

NodeState = Literal["pending", "running", "ended", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What the backend itself, not the agent stream, says of a run's nodes."""

    nodes: tuple[NodeState, ...]
    detail: str = ""
    """Why it is pending, or how a node ended, in the backend's words."""

    causes: Mapping[int, Cause] = field(default_factory=dict)
    """What the cluster knows of a node's end, by node rank: `class` and `message` as in docs/agent-stream.md.

    It stands where the agent had no time for a word, and where the agent was told to stop and could not know what for.
    """

    succeeded: bool = False
    """The cluster has it on record that the run as a whole has ended well, whatever is left of its nodes' streams."""

    @property
    def told(self) -> dict[str, Any]:
        """What an outcome takes into account beside the nodes' states."""
        return {"detail": self.detail, "causes": self.causes, "succeeded": self.succeeded}
