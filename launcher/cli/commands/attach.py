"""`distlaunch attach RUN`."""

from __future__ import annotations

from typing import Annotated, Optional

from launcher.cli import following
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.service import attaching, finding, observe
from launcher.service import interrupts as interrupting


def attach(  # noqa: PLR0917 - one per option
    run: RunArgument,
    log_ranks: Annotated[
        Optional[str], flag(metavar="all|0,3-5", help="Ranks whose lines are shown; as for a launch.")
    ] = None,
    tail: Annotated[str, flag(metavar="N|all", help="Begin with the last N lines that each node has written.")] = "10",
    on_hangup: Annotated[
        Optional[str], flag(metavar="detach|cancel", help="What happens to the run when this terminal is closed.")
    ] = None,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> int:
    """Follow a run as if it had been started here: Ctrl-C asks, d detaches, the exit code is the run's.

    $ distlaunch attach last
    $ distlaunch attach --on juno 4711
    """
    directory = observe.directory(fmt, lines=True)
    asked = attaching.options(log_ranks, on_hangup, tail)
    found = attaching.submitted(finding.find(directory, run, on))
    with interrupting.of(asked.on_hangup or "detach", None) as interrupts:
        if attaching.is_undecided(found):
            from launcher.cli import racing  # few runs need it

            return racing.resume(found, asked, interrupts)
        return following.attach(found, asked, interrupts)
