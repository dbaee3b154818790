"""`distlaunch run --on a,b,c`: the cluster that starts the run first gets it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.cli import following
from launcher.cli import launch as launching
from launcher.console import keys, live_line, summary
from launcher.service import candidates, race
from launcher.service import interrupts as interrupting
from launcher.service.leaving import Detached, Leaving
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.runs.records import Run
    from launcher.service.attaching import Asked
    from launcher.service.interrupts import Interrupts
    from launcher.service.launch import Launch

_SETTLE_S = 70.0


def launch(values: dict[str, Any]) -> int:
    """Plan on all clusters, submit where the run can start now, or on several; follow it. Returns the exit code."""
    values, settings = launching.prepared(values)
    with live_line.waiting("asking the clusters when the run would start"):
        entry = candidates.entered(values, settings)
    if entry.alone is not None:
        return launching.launch_planned(entry.alone, values)
    tries = [launching.checked(each, values) for each in entry.tries]
    request = tries[0].request
    with interrupting.of(request.on_hangup, request.backend) as interrupts:
        run = race.create(entry.path, entry.about, tries)
        output.note(summary.heading(run))
        wait = not request.options.detach
        return _compete(run, lambda contest: contest.queue_up(tries), interrupts, tries=tries, wait=wait)


def resume(run: Run, asked: Asked, interrupts: Interrupts) -> int:
    """Go on with a run whose launcher ended before a cluster had it; then follow it. Returns the exit code."""
    output.note(summary.heading(run))
    return _compete(run, lambda contest: contest.go_on(), interrupts, asked=asked)


def _compete(
    run: Run,
    begin: Callable[[race.Contest], None],
    interrupts: Interrupts,
    *,
    tries: list[Launch] | None = None,
    asked: Asked | None = None,
    wait: bool = True,
) -> int:
    """Wait until a try has the claim, and follow it, while the others are cancelled. `asked`: Ctrl-C asks."""
    typed = keys.Keys() if asked is not None and keys.available() else None
    with ExitStack() as held:
        held.enter_context(race.hold(run, interrupts))
        contest = race.Contest(run, interrupts)
        try:
            begin(contest)
            won = contest.decided(Leaving(interrupts, typed), wait=wait)
        except Detached:
            wait_text = summary.duration(contest.wait_s)
            output.note(
                f"no cluster has it yet; one that could start it waits {wait_text} for: distlaunch attach {run.id}"
            )
            return following.detached(run)
        except KeyboardInterrupt:
            with live_line.waiting("cancelling all tries"):
                contest.abandon()
            following.interrupted(run)
            raise
        if won is None:
            return launching.detached(run)
        keeps = held.pop_all()
    settling = Question(lambda: _settle(contest, keeps), "settle")
    try:
        if not wait:
            return launching.detached(won)
        chosen = next((each for each in tries or () if each.path == won.path), None)
        if chosen is not None:
            return launching.follow(chosen, won, interrupts)
        assert asked is not None
        return following.attach(won, asked, interrupts)
    finally:
        with live_line.waiting("waiting for the other clusters to cancel the run"):
            settling.answered(_SETTLE_S)


def _settle(contest: race.Contest, held: ExitStack) -> None:
    with held:
        contest.tidied()
