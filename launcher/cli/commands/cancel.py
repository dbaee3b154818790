"""`distlaunch cancel RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.console import live_line
from launcher.service import cancel as service
from launcher.service import finding, observe

if TYPE_CHECKING:
    from launcher.results.run import Cancelled


def cancel(
    run: RunArgument,
    force: Annotated[bool, flag("--force", help="Send SIGKILL at once, without the grace time.")] = False,
    wait: Annotated[bool, flag("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """End a run: SIGTERM to its workers, then SIGKILL after the grace time.

    $ distlaunch cancel last
    $ distlaunch cancel --force train-20250101-120000-abcd
    """
    found = finding.find(observe.directory(fmt), run, on)
    with live_line.waiting(f"waiting for {found.id} to end"):
        state = service.cancel(found, force=force, wait=wait)
    data: Cancelled = {"run": found.id, "state": state["state"], "exit_code": state["exit_code"]}
    with output.after(said := f"{found.id}: {state['state']}"):
        output.result(data, said)
