"""`distlaunch run --on a,b,c`: the cluster that starts the run first gets it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.cli import following
from launcher.cli import launch as launching
from launcher.console import live_line, summary
from launcher.errors import RequestError, SpecError
from launcher.runs import directories
from launcher.service import candidates, race
from launcher.service.leaving import Detached
from launcher.settings.options import one_of
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.results.race import Race
    from launcher.runs.records import Run
    from launcher.service.attaching import Asked
    from launcher.service.candidates import Candidates
    from launcher.service.interrupts import Interrupts
    from launcher.service.launch import Launch

_TRIES = 3
_SETTLE_S = 70.0


def launch(values: dict[str, Any]) -> int:
    """Plan on all clusters, submit where the run can start now, or on several; follow it. Returns the exit code."""
    values, settings = launching.prepared(values)
    start = values["start"] or "soonest"
    one_of("start", "soonest", "first")(start)
    limit = _TRIES if values["race"] is None else values["race"]
    if limit < 1:
        raise SpecError(f"race {limit} is below 1", hint="write --race 3")
    found = candidates.planned(values, values["on"], settings)
    _check(found)
    if start == "soonest" and len(found.launches) > 1:
        with live_line.waiting(f"asking {len(found.launches)} clusters when the run would start"):
            found = candidates.estimated(found)
        if (now := candidates.starts_now(found)) is not None:
            output.note(f"{now.request.cluster} can start it now")
            return launching.launch_planned(now, values)
    best = candidates.best(found, limit)
    if len(best) == 1:
        return launching.launch_planned(best[0], values)
    claim = candidates.claiming(values, settings)
    detach = best[0].request.options.detach
    if detach and not claim.place:
        raise RequestError(
            "no cluster can start the run now, and with --detach nothing decides which of them gets it",
            hint="leave --detach out, name one cluster, or give a --claim DIR that all of them reach",
        )
    about: Race = {
        "start": "first" if start == "first" else "soonest", "limit": limit, "claim": claim.place,
        "wait_s": claim.wait_s, "asked": list(found.asked), "tries": [],
    }  # fmt: skip
    path = directories.root(best[0].request.runs_root) / directories.new_id(best[0].request.job.name)
    tries = [launching.checked(candidates.as_try(each, path, claim), values) for each in best]
    with following.interrupts(best[0].request.on_hangup, best[0].request.backend) as interrupts:
        run = race.create(path, about, tries)
        output.note(summary.heading(run))
        return _compete(run, lambda contest: contest.queue_up(tries), interrupts, tries=tries, wait=not detach)


def _check(found: Candidates) -> None:
    options = found.launches[0].request.options
    for name in ("dry_run", "render_to", "unique"):
        if getattr(options, name):
            text = name.replace("_", "-")
            raise SpecError(f"--{text} and several clusters exclude each other", hint="name one: --on NAME")


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
    """Wait until a try has the claim, and follow it, while the others are cancelled."""
    with ExitStack() as held:
        held.enter_context(race.hold(run, interrupts))
        contest = race.Contest(run, interrupts)
        try:
            begin(contest)
            won = contest.decided(wait=wait)
        except Detached:
            wait_text = summary.duration(contest.wait_s)
            output.note(
                f"no cluster has it yet; one that could start it waits {wait_text} for: distlaunch attach {run.id}"
            )
            return following.detached(run)
        except KeyboardInterrupt:
            with live_line.waiting("cancelling all tries"):
                contest.abandon()
            raise
        if won is None:
            return launching.detached(run)
        keeps = held.pop_all()
    settling = Question(lambda: _settle(contest, keeps), "settle")
    try:
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
        contest.settled()
