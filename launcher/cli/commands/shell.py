"""`distlaunch shell RUN`."""

from __future__ import annotations

import os
from typing import Annotated

from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.console import shell_terminal
from launcher.errors import RequestError
from launcher.service import finding, observe
from launcher.service import shell as service


def shell(
    run: RunArgument,
    node: Annotated[int, flag(metavar="N", help="The node on which the shell runs.")] = 0,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> int:
    """Open a shell beside a run's workers: on their host, in their directory, with the job's environment.

    $ distlaunch shell last
    $ distlaunch shell --node 3 train-20250101-120000-abcd
    """
    found = finding.find(observe.directory(fmt), run, on)
    connect = service.connection(found, node)
    if not (os.isatty(0) and os.isatty(1)):
        raise RequestError("a shell needs a terminal", hint="run this command at a terminal")
    shell_terminal.run(connect, f"node {node} of {found.id}; exit or Ctrl-D leaves it")
    return 0
