"""Why and when this node's workers must end: what signals ask for, the deadline, and where the workers find it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Optional

from ..failures import Failure
from ..named_tuple import NamedTuple
from ..system import files
from ..system.scratch import within
from .place import Place

_LOOK_S = 1.0
_EARLY_S = 75.0
"""How much sooner than it was to, at most, Slurm announces the end: it looks every half a minute."""

CANCEL = "cancel.json"
"""What the launcher writes before it signals: in the run's directory, or over SSH in the node's if it is forced."""

STOPS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Ask(NamedTuple):
    """What a signal to the agent asks for."""

    reason: str
    signal: int
    """The signal for the workers."""

    deadline: Optional[float]
    """Unix seconds; None: after the grace time."""

    forward: bool
    """Whether the workers have not received it themselves."""


class Stops:
    """At most one stop: a peer's message and a signal to this agent often stem from the same request."""

    def __init__(self, place: Place) -> None:
        self.reason: Optional[str] = None
        """As `result` in the agent stream; None: no stop was requested."""

        self.kill_at: Optional[float] = None
        """When the workers are killed, on the monotonic clock."""

        self._job = place.job
        self._directory = place.directory
        self._file = os.path.join(place.scratch.path, "deadline")
        """Where the workers find the deadline."""

        self._heard = 0
        self._last = (0, 0.0)
        """The last signal that asked for a stop, and when it came."""

        self._stops = STOPS | {signal.Signals[name] for name in place.job.stop_signals or ()}

    @property
    def ends_node(self) -> bool:
        """Whether this node is to end soon, on request or at its scheduler's time limit, and not only its workers."""
        by_scheduler = self.reason == Failure.TIMEOUT and self._job.end_signal is not None
        return by_scheduler or self.reason in (Failure.CANCELLED, Failure.PREEMPTED) or self._heard > 0

    def cancelled(self) -> bool:
        """Whether the user has cancelled the run, which the launcher records before it signals the agent."""
        return within(_LOOK_S, lambda: os.path.exists(os.path.join(self._job.directory, CANCEL)), False)

    def _forced(self) -> bool:
        """Whether the run was cancelled without a grace time.

        The second signal alone does not show it: two that arrive before they are handled count as one.
        """
        paths = [os.path.join(directory, CANCEL) for directory in (self._job.directory, self._directory)]
        return within(_LOOK_S, lambda: any(map(_asks_for_force, paths)), False)

    def asked_by(self, number: int) -> Optional[Ask]:
        """What a signal to this agent asks for; None if it is not a stop. The second one kills at once."""
        if number in self._stops:
            before, then = self._last
            self._last = number, time.monotonic()
            self._heard += number != before or self._last[1] - then > self._job.same_signal_s
            if self._heard > 1 and not self._job.signals_reach_workers:  # Slurm repeats its own, and sends SIGKILL
                self.kill_at = time.monotonic()
            at = time.time() if self._forced() else self._killed_by_scheduler()
            return Ask(self._job.sigterm_means, number, at, not self._job.signals_reach_workers)
        if self._job.end_signal is None or number != signal.Signals[self._job.end_signal]:
            return None
        # Workers do not react to this one: the time limit is near, or the launcher cancels.
        if self.cancelled():
            return Ask(Failure.CANCELLED, signal.SIGTERM, None, forward=True)
        # Some of that time is needed to report the result, and for the scheduler to requeue the run.
        at = self._time_limit() - min(10.0, self._job.lead_s / 4)
        return Ask(Failure.TIMEOUT, signal.SIGTERM, at, forward=True)

    def _time_limit(self) -> float:
        """When the scheduler ends the job, which has just announced it.

        What the variable says is from the job's start: the limit may have changed, or the job was suspended.
        """
        ends = float(os.environ.get("SLURM_JOB_END_TIME") or 0.0)
        agree = 0.0 < ends - time.time() < self._job.lead_s + _EARLY_S
        return ends if agree else time.time() + self._job.lead_s

    def _killed_by_scheduler(self) -> Optional[float]:
        """The workers' deadline if the scheduler kills without regard to the grace time; the agent needs some of it."""
        wait = self._job.kill_wait_s
        return None if wait is None else time.time() + min(self._job.grace_s, wait - min(3.0, wait / 4))

    def begin(self, reason: str, deadline: Optional[float]) -> float:
        """Stop for this reason; returns the deadline in unix seconds, which the workers find in a file."""
        self.reason = reason
        deadline = deadline or time.time() + self._job.grace_s
        self.kill_at = time.monotonic() + max(0.0, deadline - time.time())
        with contextlib.suppress(OSError):  # a full disk must not keep the workers from ending
            files.write_whole(self._file, f"{deadline:.3f}\n".encode("ascii"), sync=False)
        if reason == Failure.TIMEOUT and self._job.end_signal:
            within(_LOOK_S, self._note_time_limit, None)
        return deadline

    def _note_time_limit(self) -> None:
        """Leave a note for the job file, which may requeue the run."""
        with contextlib.suppress(OSError):
            files.write_once(os.path.join(self._job.directory, "time_limit"), b"", sync=False)


def _asks_for_force(path: str) -> bool:
    try:
        return bool(json.loads(files.read_word(path)).get("force"))
    except (OSError, ValueError, AttributeError):
        return False
