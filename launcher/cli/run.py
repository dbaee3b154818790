"""`distlaunch run --on CLUSTER SCRIPT`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from launcher.cli._launch import SCRIPT_LAST, launch, launching
from launcher.cli._parameters import keyword

CONTEXT_SETTINGS = SCRIPT_LAST


def _run_on(values: dict[str, Any]) -> int:
    return launch(None, {**values, "cluster": values["on"]})


run = launching(
    "Run on a named cluster, with the backend and the settings of [clusters.NAME].",
    _run_on,
    [keyword("on", Annotated[str, typer.Option("--on", metavar="NAME", help="The cluster.", show_default=False)])],
)
