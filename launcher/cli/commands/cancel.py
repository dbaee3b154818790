"""`distlaunch cancel RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, argument, complete_run, flag
from launcher.console import live_line
from launcher.errors import RequestError
from launcher.service import cancel as service
from launcher.service import finding, observe
from launcher.system import amounts

if TYPE_CHECKING:
    from launcher.results.run import Cancelled
    from launcher.results.warm import WarmEnded


def cancel(  # noqa: PLR0917 - one parameter for each option
    run: Annotated[
        Optional[str],
        argument(
            metavar="[RUN]",
            help="Run id as `distlaunch ls` prints it, a unique part of one, `last`, or its scheduler's id.",
            complete=complete_run,
        ),
    ] = None,
    force: Annotated[bool, flag("--force", help="Send SIGKILL at once, without the grace time.")] = False,
    wait: Annotated[bool, flag("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    warm: Annotated[
        bool, flag("--warm", help="End what runs with --warm have left standing here, or --on a cluster, not a run.")
    ] = False,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """End a run: SIGTERM to its workers, then SIGKILL after the grace time.

    $ distlaunch cancel last
    $ distlaunch cancel --force train-20250101-120000-abcd
    """
    directory = observe.directory(fmt)
    if warm or run is None:
        _end_standing(run, on, warm=warm)
        return
    found = finding.find(directory, run, on)
    with live_line.waiting(f"waiting for {found.id} to end"):
        state = service.cancel(found, force=force, wait=wait)
    data: Cancelled = {"run": found.id, "state": state["state"], "exit_code": state["exit_code"]}
    with output.after(said := f"{found.id}: {state['state']}"):
        output.result(data, said)


def _end_standing(run: str | None, on: str | None, *, warm: bool) -> None:
    """End the fork servers that wait for the next run."""
    if not warm:
        raise RequestError("no run given", hint="distlaunch cancel RUN, or --warm for what runs have left standing")
    if run is not None:
        raise RequestError(f"{run} and --warm exclude each other", hint="cancel them one after the other")
    from launcher.service import warm as standing  # few commands end them

    where = f"on {on}" if on else "here"
    with live_line.waiting(f"ending what stands {where}"):
        data: WarmEnded = {"ended": standing.end(on)}
    count = len(data["ended"])
    output.result(data, f"ended {amounts.counted(count, 'server')}" if count else f"nothing was left standing {where}")
