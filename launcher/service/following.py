"""Follow a run to its end, over its restarts: right after its launch, or later and from anywhere."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from launcher import output
from launcher.console import live_line
from launcher.errors import LaunchError
from launcher.runs import directories
from launcher.runs import restarts as restarting
from launcher.service import putting_aside, resume
from launcher.service.follow import Follower, View, record
from launcher.service.leaving import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.backends._base import AnyBackend
    from launcher.results.run import RunState
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run
    from launcher.service.attaching import Asked
    from launcher.service.leaving import Leaving

_LOOK_S = 1.0
"""How often a run that may start again is looked at: another process that follows it may have done so."""


def follow(
    run: Run,
    backend: AnyBackend,
    view: View,
    leaving: Leaving,
    *,
    tail: int | None = None,
    restarted: Callable[[Run], None] = lambda _: None,
) -> tuple[Run, Outcome]:
    """Follow the run to its end, restarting it when due; returns the run as it is then. Raises if it does not end.

    `tail`: begin with this many of the last lines that each node has sent so far; None: show everything.
    `restarted` is called with each restarted run. Raises `Detached` if the user leaves.
    """
    with left_alone(leaving.interrupts) if tail is not None else nullcontext():
        offsets, known = ({}, {}) if tail is None else resume.known(run, view.ranks, tail)
    doing = backend.name if tail is None else "attach"
    restarts = _Restarts(run, backend, leaving, doing) if run.handle and backend.restarts_left(run.handle) else None
    with restarting.following(run, doing) if restarts else nullcontext():
        outcome = Follower(run, backend, view, leaving).follow(offsets, known, restarts)
        while restarts:
            # This terminal has shown the streams up to here; `logs` shows everything.
            offsets = resume.sizes(run)
            if (started := _next(restarts, outcome)) is None:
                break
            run = restarts.run = started
            restarted(run)
            outcome = Follower(run, backend, view, leaving).follow(offsets, restarts=restarts)
        if restarts and outcome.final and not restarting.expected(run, outcome):
            record(run, outcome)
    if outcome.exit_code is None:
        from launcher.service import observe  # few runs need it

        raise observe.not_ended(run, forced=True)
    putting_aside.after(run, outcome.to_json())
    return run, outcome


def attach(found: Run, backend: AnyBackend, asked: Asked, leaving: Leaving) -> tuple[Run, RunState]:
    """Follow a run that was started elsewhere to its end. Raises `Detached` if the user leaves."""
    if found.tasks:
        from launcher.service import arrays  # few runs need it

        return found, arrays.follow(found, leaving)
    run, outcome = follow(found, backend, View(asked.ranks), leaving, tail=asked.tail)
    return run, outcome.to_json()


class _Restarts:
    """When a run that is followed starts again, and by whom."""

    def __init__(self, run: Run, backend: AnyBackend, leaving: Leaving, doing: str) -> None:
        self.run, self.backend, self.leaving, self.doing = run, backend, leaving, doing
        self._looked, self.begun = 0.0, False
        """`begun`: another process has begun to start it again."""

    def due(self, outcome: Outcome) -> bool:
        """See `follow.Restarts`."""
        if not restarting.may_follow(outcome) or self.leaving.interrupts.stops:
            return False
        return self.run.cancel_requested is None and self.backend.restarts_left(self.run.known) > 0

    @property
    def elsewhere(self) -> bool:
        """See `follow.Restarts`."""
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self.begun = self.begun or restarting.latest(self.run) > self.run.attempt
        return self.begun


def _next(restarts: _Restarts, outcome: Outcome) -> Run | None:
    """The run as it continues: its next attempt, which this process starts, or another; None if it has ended.

    If another process could not start it again, that is the attempt which has ended.
    """
    run, leaving = restarts.run, restarts.leaving
    if not restarts.begun and restarting.latest(run) == run.attempt:
        if not restarts.due(outcome):
            if restarting.may_follow(outcome) and not restarts.backend.restarts_left(run.known):
                output.warn("not started again: no restart is left (--max-restarts)")
            return None
        output.warn(str((outcome.cause or {}).get("message")) + "; starting again without it")
        return _again(restarts, outcome)
    from launcher.service import attaching  # few runs need it

    restarts.begun = False
    with leaving.interrupts.at_once():
        return attaching.submitted(directories.again(run))


def _again(restarts: _Restarts, ended: Outcome) -> Run | None:
    """Start the run again, unless another process that follows it has; None if neither can."""
    from launcher.service import again  # few runs need it

    run, attempt = restarts.run, ended.attempt + 1
    try:
        with restarts.leaving.interrupts.at_once(), live_line.waiting(f"starting {run.id} again"):
            return again.start(run, restarts.backend, attempt, doing=restarts.doing, ended=ended.to_json())
    except LaunchError as error:
        now = directories.again(run)
        if now.attempt >= attempt and now.submitted:
            return now
        output.warn(f"not started again: {error.message}")
        return None
