"""How this node's part of the run ends, as far as it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Optional, Tuple

from .. import cause
from ..failures import Failure
from .analysis import FailureAnalysis
from .place import Place
from .stops import Stops

if TYPE_CHECKING:
    from ..messages import Result


class Outcome:
    """What was first counts: a failure before a stop, a stop before a failure, and that all have ended well before both."""

    def __init__(self, place: Place, stops: Stops) -> None:
        self.analysis = FailureAnalysis(place)
        self.failed: Optional[cause.Cause] = None
        self.first_cause: Optional[cause.Cause] = None
        """Of the present round, as the other nodes were told it."""

        self.result: Optional[Result] = None
        """What the worker group's process has said last."""

        self.group_gone = False
        """Whether nothing more is to come from that process."""

        self.restarts = 0
        self.early: Dict[str, bool] = {}
        """Said with its `done` by a node that has left well before the others."""

        self._job, self._stops = place.job, stops

    def fail(self, message: str, kind: Failure = Failure.NODE, trace: Optional[str] = None) -> None:
        """The node itself fails; what comes after a stop, or after a first failure, is not the cause."""
        if self.failed is None and self._stops.reason is None:
            self.failed = self.analysis.of_node(message, kind, traceback=trace)

    def ended_well(self) -> bool:
        """Whether the workers of all nodes have: whatever asks for an end after that comes too late."""
        return self.result is not None and self.result["result"] == "success"

    def awaits_result(self) -> bool:
        """Whether the worker group's process is to say one: nobody has asked for an end."""
        return self.result is None and self._stops.reason is None

    def verdict(self, own: Callable[[], Optional[cause.Cause]], *, met: bool) -> Tuple[str, Optional[cause.Cause]]:
        """The result of the last event, and its cause. `own`: the first cause among our workers; `met`: all nodes have met."""
        if self.failed is None and self._stops.reason is not None and not self.ended_well():
            return self._stops.reason, self.analysis.of_stop(self._stops.reason, self._job.time_limit_s)
        without = "the process of the worker group ended without a result"
        said = self.result or {"result": "failed", "error": without, "secondary": True}
        result, why = ("failed", self.failed) if self.failed else self.analysis.of_result(said, own())
        if why is not None and self._job.replaces_lost and self._job.max_nodes > 1:
            lost = said.get("lost") or said.get("word", {}).get("kind") == "lost"
            result = "lost" if lost or (met and why.get("secondary")) else result
        return result, why
