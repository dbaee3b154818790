"""What ends this node's workers early: a signal, the time limit, another node, or an internal failure."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from .. import cause, roles
from ..failures import Failure
from ..stream.writer import Writer
from ..system import processes
from .children import ServerProcess
from .loop import Loop
from .outcome import Outcome
from .place import Place
from .stacks import Stacks
from .stops import STOPS, Stops
from .workers import Workers

if TYPE_CHECKING:
    from ..messages import Cause

_FAREWELL_S = 6.0
_TOLD_S = 0.5
_SAME_SIGNAL_S = 1.0


class Stopping:
    """Signals the workers, notifies the other nodes, and keeps the deadlines."""

    def __init__(
        self,
        place: Place,
        out: Writer,
        loop: Loop,
        *,
        server: ServerProcess,
        workers: Workers,
        outcome: Outcome,
        stops: Stops,
        stacks: Stacks,
    ) -> None:
        self._place, self._job, self._out, self._loop = place, place.job, out, loop
        self._server, self._workers, self._outcome, self.stops = server, workers, outcome, stops
        self._stacks = stacks
        self._asks_for_stacks = (
            processes.ASKS_ALL_FOR_STACKS if place.job.signals_reach_workers else processes.ASKS_FOR_STACKS
        )
        self._linger_until: Optional[float] = None

    # -- requests -----------------------------------------------------------------------------------------------------

    def hear_signals(self) -> None:
        """Handle the received signals, and failures of the agent's threads."""
        failure = self._loop.failure()
        if failure is not None:
            self.break_down(failure[0], trace=failure[1])
        for number in self._loop.signals():
            ask = self.stops.asked_by(number)
            if ask is not None:
                self.stop(ask.reason, ask.signal, deadline=ask.deadline, forward=ask.forward)
            elif number == self._asks_for_stacks:
                self._stacks.report()
            elif number in processes.PASSED_ON and not self._job.signals_reach_workers:
                self._server.signal(number, mark=False)

    def look_for_own_signal(self) -> None:
        """Wait for the agent's own signal if one also reached the workers: workers that it ended have not failed."""
        if not self._job.signals_reach_workers or self.stops.reason is not None:
            return
        if self._workers.any_ended_by(STOPS):
            self._loop.wait_for_signal(_SAME_SIGNAL_S)
            self.hear_signals()

    def is_cause_of(self, end: Cause) -> bool:
        """Whether a worker was ended by the signal with which this agent was stopped, too: that is no failure."""
        stopped = self._job.signals_reach_workers and self.stops.reason is not None
        return stopped and end["signal"] in {cause.signal_name(number) for number in STOPS}

    def is_to_leave(self) -> bool:
        """Whether the agent got a signal to exit while it only waits for its stream."""
        return any(number in STOPS for number in self._loop.signals())

    def break_down(self, message: str, kind: Failure = Failure.NODE, trace: Optional[str] = None) -> None:
        """Stop the workers after an internal failure; they have their grace time."""
        self._outcome.fail(message, kind, trace)
        self.stops.kill_at = self.stops.kill_at or time.monotonic() + self._job.grace_s
        self._server.signal(signal.SIGTERM)

    # -- actions ------------------------------------------------------------------------------------------------------

    def stop(
        self,
        reason: str,
        number: int,
        *,
        deadline: Optional[float] = None,
        by: Optional[Dict[str, Any]] = None,
        forward: bool = True,
    ) -> None:
        """Signal all workers, and set a deadline. `by`: the node that was asked to stop and has passed that on."""
        if self.stops.reason is not None:
            return
        if self._outcome.ended_well():  # nothing is left to stop, but leave quickly
            self._server.group.send({"stop": reason, "leaves": True})
            return
        if by is None and self._is_done(reason):
            self._server.group.send({"stop": reason, "done": True})
            self._outcome.early = {"early": True}
            return
        self._outcome.failed = self._outcome.failed or self._outcome.first_cause
        self._workers.output.go_on()
        deadline = self.stops.begin(reason, deadline)
        told: Dict[str, Any] = {} if by is None else {"by": by}
        self._out.event(
            "stopping", reason=reason, signal=cause.signal_name(number), deadline=round(deadline, 3), **told
        )
        self._out.settle(_TOLD_S)  # a worker may take its agent down, and the next attempt needs the reason
        if by is None:
            leaves = reason == Failure.PREEMPTED and self._may_leave()
            self._server.group.send({"stop": reason, "deadline": deadline, "signal": int(number), "leaves": leaves})
        if forward:
            self._server.signal(number)

    def catch_up(self) -> None:
        """Signal a worker that was still starting when the others were signalled."""
        if self.stops.reason is not None:
            self._server.signal(signal.SIGTERM, repeat=False)

    def _may_leave(self) -> bool:
        """Whether the others continue without this node."""
        job, node = self._job, self._place.node_rank
        ignored = roles.at(job, node).on_failure == roles.IGNORE and job.replaces_lost and bool(self._workers)
        return node > 0 and (job.elastic or ignored)

    def _is_done(self, reason: str) -> bool:
        """Whether a preempted node has done its part and the others can continue without it, as none will restart."""
        job, node = self._job, self._place.node_rank  # a scheduler takes the end of a role's first node for all of it
        alone = node > roles.at(job, node).first and not job.elastic and not job.max_restarts and job.replaces_lost
        return alone and reason == Failure.PREEMPTED and self._workers.all_succeeded()

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def keep_deadlines(self, now: float) -> None:
        """Stop at the time limit; kill workers that are left when their grace time is over."""
        limit = self._time_limit_at()
        if limit is not None and self.stops.reason is None and now >= limit:
            self.stop(Failure.TIMEOUT, signal.SIGTERM)
        if self.stops.kill_at is not None and now >= self.stops.kill_at:
            self.stops.kill_at = now + 1.0
            self._server.signal(signal.SIGKILL)

    def patience(self, now: float) -> float:
        """Seconds until `keep_deadlines` and `over` must be called again."""
        until: List[float] = []
        limit = self._time_limit_at()
        if self.stops.kill_at is not None:
            until.append(self.stops.kill_at)
        elif limit is not None:
            until.append(limit)
        if self._linger_until is not None:
            until.append(self._linger_until)
        if self._fails() and self._outcome.tells_until > now:
            until.append(self._outcome.tells_until)
        return min(until, default=float("inf")) - now

    def _time_limit_at(self) -> Optional[float]:
        limit = self._job.time_limit_s
        return None if limit is None or self._outcome.ended_well() else self._place.began + limit

    def _fails(self) -> bool:
        """Whether this node has failed by itself, and the others do not know yet, or never will."""
        return self._outcome.failed is not None and self._outcome.result is None

    def over(self) -> bool:
        """Whether no workers are left, and the group's process has sent its last message or had time to."""
        if self._workers.running():
            return False
        if self._outcome.group_gone or (self._fails() and time.monotonic() >= self._outcome.tells_until):
            return True
        if self.stops.reason is None:
            return False
        if self._linger_until is None:  # to notify the other nodes; an import or a rendezvous need not finish
            self._linger_until = time.monotonic() + (_FAREWELL_S if self._workers else 1.0)
        return time.monotonic() >= self._linger_until
