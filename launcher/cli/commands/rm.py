"""`distlaunch rm RUN...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, argument, complete_run, flag
from launcher.console import live_line
from launcher.service import finding, observe, removal

if TYPE_CHECKING:
    from launcher.results.run import Removed


def rm(
    run: Annotated[
        list[str], argument(metavar="RUN...", help="Runs, as for `distlaunch status`.", complete=complete_run)
    ],
    force: Annotated[
        bool, flag("--force", help="Also if its cluster does not answer, or its state cannot be known.")
    ] = False,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """Remove runs that have ended: their directories here, and what is left of them on hosts and clusters.

    $ distlaunch rm train-20250101-120000-abcd
    $ distlaunch rm --force last
    """
    directory = observe.directory(fmt)
    found = {each.id: each for each in (finding.find(directory, text, on) for text in run)}
    for each in found.values():
        removal.check(each, force=force)
    for each in found.values():
        with live_line.waiting(f"removing {each.id}"):
            removal.remove(each, force=force)
    removal.sweep(directory)
    data: Removed = {"runs": list(found)}
    output.result(data, *found)
