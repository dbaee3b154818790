"""Follow a run to its end, over its restarts: right after its launch, or later and from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.console import live_line
from launcher.errors import LaunchError
from launcher.runs import directories
from launcher.service import putting_aside, resume
from launcher.service.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.backends._base import AnyBackend
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run
    from launcher.service.follow import View
    from launcher.service.leaving import Leaving


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
    offsets, known = ({}, {}) if tail is None else resume.known(run, view.ranks, tail)
    outcome = Follower(run, backend, view, leaving).follow(offsets, known)
    while run.handle and not leaving.interrupts.stops and backend.goes_on(run.handle, outcome):
        output.warn(str((outcome.cause or {}).get("message")) + "; starting again without it")
        # This terminal has shown the streams up to here; `logs` shows everything.
        offsets = resume.sizes(run)
        if (started := _again(run, backend, outcome.attempt + 1, leaving)) is None:
            break
        run = started
        restarted(run)
        outcome = Follower(run, backend, view, leaving).follow(offsets)
    if outcome.exit_code is None:
        from launcher.service import observe  # few runs need it

        raise observe.not_ended(run, forced=True)
    putting_aside.after(run, outcome.to_json())
    return run, outcome


def _again(run: Run, backend: AnyBackend, attempt: int, leaving: Leaving) -> Run | None:
    """Start the run again, unless another process that follows it has; None if neither can."""
    from launcher.service import again  # few runs need it

    try:
        with leaving.interrupts.at_once(), live_line.waiting(f"starting {run.id} again"):
            return again.start(run, backend, attempt, doing=backend.name)
    except LaunchError as error:
        now = directories.again(run)
        if now.attempt >= attempt and now.submitted:
            return now
        output.warn(f"not started again: {error.message}")
        return None
