"""Run on a named cluster, with the backend and the settings of [clusters.NAME].

$ distlaunch run --on juno --nodes 4 train.py
$ distlaunch run --on juno --detach train.py --epochs 20
"""

from __future__ import annotations

from typing import Annotated, Any

from launcher.cli.launch import SCRIPT_LAST, launch, launching
from launcher.cli.parameters import flag, parameter

CONTEXT_SETTINGS = SCRIPT_LAST


def _run_on(values: dict[str, Any]) -> int:
    return launch(None, {**values, "cluster": values["on"]})


_ON = Annotated[
    str,
    flag(
        "--on",
        aliases=("--cluster",),
        metavar="NAME",
        help="Cluster to run on, by its name in the settings.",
        group="job",
    ),
]

run = launching(str(__doc__), _run_on, [parameter("on", _ON)])
