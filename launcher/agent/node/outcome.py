"""How this node's part of the run ends, as far as it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Optional, Tuple

from ..failures import Failure
from .analysis import FailureAnalysis
from .place import Place
from .stops import Stops

if TYPE_CHECKING:
    from ..messages import Cause, Result


class Outcome:
    """Whichever came first counts: a failure, a stop, or the success of all workers."""

    def __init__(self, place: Place, stops: Stops) -> None:
        self.analysis = FailureAnalysis(place)
        self.failed: Optional[Cause] = None
        self.first_cause: Optional[Cause] = None
        """That of the current round, as published to the other nodes."""

        self.hang: Optional[Cause] = None
        """Why this node has ended its own workers: the run hung."""

        self.result: Optional[Result] = None
        """The last message of the worker group's process."""

        self.group_gone = False
        """Whether no more messages will come from that process."""

        self.final = False
        """Whether that ends the run even if restarts are left."""

        self.tells_until = 0.0
        """When the process has had time to tell the other nodes of a failure before the rendezvous."""

        self.restarts = 0
        self.early: Dict[str, bool] = {}
        """Added to the `done` event of a node that left successfully before the others."""

        self._job, self._stops = place.job, stops

    def fail(
        self, message: str, kind: Failure = Failure.NODE, trace: Optional[str] = None, *, secondary: bool = False
    ) -> None:
        """Record a failure of the node itself, unless a stop or another failure came first.

        `secondary`: it is the consequence of another node's.
        """
        if self.failed is None and self._stops.reason is None:
            self.failed = self.analysis.of_node(message, kind, traceback=trace)
            if secondary:
                self.failed["secondary"] = True

    def ended_well(self) -> bool:
        """Whether the workers of all nodes have succeeded; a request to stop after that comes too late."""
        return self.result is not None and self.result["result"] == "success"

    def awaits_result(self) -> bool:
        """Whether the worker group's process has yet to report a result, and no stop was requested."""
        return self.result is None and self._stops.reason is None

    def verdict(self, own: Callable[[], Optional[Cause]], *, met: bool) -> Tuple[str, Optional[Cause]]:
        """The result for the last event, and its cause.

        `own` returns the first cause among this node's workers; `met`: whether all nodes have met.
        """
        if self.failed is None and self._stops.reason is not None and not self.ended_well():
            return self._stops.reason, self.analysis.of_stop(self._stops.reason, self._job.time_limit_s)
        without = "the process of the worker group ended without a result"
        said = self.result or {"result": "failed", "error": without, "secondary": True}
        if self.failed is not None and self.failed["class"] == Failure.NOT_CHOSEN:
            return Failure.NOT_CHOSEN, self.failed
        result, why = ("failed", self.failed) if self.failed else self.analysis.of_result(said, own())
        if why is not None and self._job.replaces_lost and self._job.max_nodes > 1:
            lost = said.get("lost") or said.get("word", {}).get("kind") == "lost"
            result = "lost" if lost or (met and why.get("secondary")) else result
        return result, why
