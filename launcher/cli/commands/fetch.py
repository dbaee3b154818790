"""`distlaunch fetch RUN`."""

from __future__ import annotations

from typing import Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, argument, flag
from launcher.console import live_line, summary
from launcher.service import fetch as service
from launcher.service import finding, observe


def fetch(  # noqa: PLR0917 - one per option
    run: RunArgument,
    patterns: Annotated[
        Optional[list[str]],
        argument(metavar="PATTERN", help="Files or directories, such as 'results/**/*.pt' [default: all new files]."),
    ] = None,
    to: Annotated[
        Optional[str], flag(metavar="DIR", help="Directory here for the files [default: one of the run's name].")
    ] = None,
    node: Annotated[
        Optional[str],
        flag(metavar="N|all", help="Fetch from this node; all: of every node [default: fetch_node, 0]."),
    ] = None,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """Fetch files that a run's workers have written, from the directory where they started.

    $ distlaunch fetch last 'results/**'
    $ distlaunch fetch --to here --node all train-20250101-120000-abcd
    """
    found = finding.find(observe.directory(fmt), run, on)
    target, nodes = service.target(found, to), service.default_nodes(found, node)
    with live_line.waiting(f"fetching from {found.id}"):
        fetched = service.fetch(found, patterns or (), target, nodes)
    output.result(fetched, *summary.fetched(fetched))
