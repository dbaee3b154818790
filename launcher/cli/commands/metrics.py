"""`distlaunch metrics [RUN]`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, argument, complete_run, flag
from launcher.console import live_line
from launcher.service import finding, observe
from launcher.service import metrics as service
from launcher.system import amounts, storage

if TYPE_CHECKING:
    from launcher.results.metrics import Metrics


def metrics(
    run: Annotated[
        Optional[str],
        argument(
            metavar="[RUN]",
            help="This run; otherwise all that have not ended more than an hour ago.",
            complete=complete_run,
        ),
    ] = None,
    to: Annotated[
        Optional[str],
        flag("-o", "--to", metavar="FILE", help="Write them to this file, which is always whole, for all to read."),
    ] = None,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """Print metrics of runs for Prometheus, in OpenMetrics' text format.

    $ distlaunch metrics last
    $ distlaunch metrics -o /var/lib/node_exporter/textfile/distlaunch.prom
    """
    directory = observe.directory(fmt)
    with live_line.waiting("asking for the states of runs"):
        if run is None:
            runs = service.recent(directory)
        else:
            found = finding.find(directory, run, on)
            runs = [(found, observe.state_of(found))]
        text = service.page(runs).text()
    path = None if to is None else os.path.abspath(to)
    data: Metrics = {"runs": [each.id for each, _ in runs], "text": text, "path": path}
    if path is None:
        output.document(data, text)
        return
    storage.write_whole(path, text.encode(), mode=0o644)
    output.result(data, f"metrics of {amounts.counted(len(runs), 'run')}: {path}")
