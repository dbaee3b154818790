"""`distlaunch wait RUN...`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, argument, complete_run, flag
from launcher.console import live_line
from launcher.service import finding, observe, waiting
from launcher.system import amounts

if TYPE_CHECKING:
    from launcher.results.run import Waited


def wait(
    run: Annotated[
        list[str], argument(metavar="RUN...", help="Runs, as for `distlaunch status`.", complete=complete_run)
    ],
    any_: Annotated[bool, flag("--any", help="Return when the first of them has ended.")] = False,
    timeout: Annotated[
        Optional[str], flag(metavar="DURATION", help="Maximum time to wait: 90s, 2h. Then the exit code is 5.")
    ] = None,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> int:
    """Wait for runs to end; the exit code is the run's, of several the first that is not 0.

    $ distlaunch wait last
    $ distlaunch wait --timeout 2h train-20250101-120000-abcd 4711
    """
    directory = observe.directory(fmt)
    found = [finding.find(directory, text, on) for text in run]
    with live_line.waiting(f"waiting for {amounts.listed(each.id for each in found)} to end"):
        ended = waiting.wait(found, first=any_, timeout=timeout)
    lines = [f"{each.id}: {state['state']}" for each, state in ended]
    data: Waited = {
        "runs": [
            {"run": each.id, "job_id": each.job_id, "state": state["state"], "exit_code": state["exit_code"]}
            for each, state in ended
        ]
    }
    with suppress(output.StdoutClosedError):  # the exit code is what counts
        output.result(data, *lines)
    return next((code for _, state in ended if (code := state["exit_code"])), 0)
