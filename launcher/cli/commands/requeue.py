"""`distlaunch requeue RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument  # noqa: TC001 - read at run time
from launcher.console import live_line
from launcher.service import again, finding, observe

if TYPE_CHECKING:
    from launcher.results.run import Requeued


def requeue(run: RunArgument, on: OnOption = None, fmt: OutputOption = None) -> None:
    """Start a run again in its directory: a script that keeps checkpoints continues from the last one.

    $ distlaunch requeue last
    $ distlaunch requeue train-20250101-120000-abcd
    """
    found = finding.find(observe.directory(fmt), run, on)
    with live_line.waiting(f"starting {found.id} again"):
        attempt = again.requeue(found)
    with output.after(f"{found.id} continues as attempt {attempt}", f"to end it: distlaunch cancel {found.id}"):
        data: Requeued = {"run": found.id, "attempt": attempt}
        output.result(data, f"{found.id}: attempt {attempt}")
