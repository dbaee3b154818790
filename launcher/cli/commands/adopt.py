"""`distlaunch adopt RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, argument, flag
from launcher.console import live_line
from launcher.service import cluster, observe

if TYPE_CHECKING:
    from launcher.results.run import Adopted


def adopt(  # noqa: PLR0917 - typer's
    run: Annotated[str, argument(metavar="RUN", help="Run id, the start of it, or with --on the scheduler's id.")],
    inventory: Annotated[
        Optional[list[str]],
        flag("-i", "--inventory", metavar="PATH|H1,H2,", help="The hosts that the run was started on."),
    ] = None,
    limit: Annotated[
        Optional[str], flag(metavar="PATTERN", help="Only these hosts or groups of the inventory.")
    ] = None,
    remote_dir: Annotated[
        Optional[str], flag(metavar="DIR", help="The directory on the hosts that it was started with.")
    ] = None,
    on: Annotated[
        Optional[str], flag("--on", metavar="NAME", help="The cluster, by its name in the settings, or the backend.")
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """Take over a run that was started elsewhere: status, logs, attach, cancel and requeue then work here.

    $ distlaunch adopt train-20250101-120000-abcd --inventory hosts.ini
    $ distlaunch adopt train-20250101 --on lab
    """
    directory = observe.directory(fmt)
    given = {"inventory": tuple(inventory) if inventory else None, "limit": limit, "remote_dir": remote_dir}
    with live_line.waiting(f"looking for {run} on its hosts"):
        found = cluster.adopt(run, directory, on, given)
    with output.after(f"{found.id} was adopted"):
        data: Adopted = {"run": found.id, "path": str(found.path), "job_id": found.job_id, "hosts": found.hosts}
        output.result(data, found.id)
