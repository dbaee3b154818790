"""Run on a named cluster, with the backend and the settings of [clusters.NAME].

$ distlaunch run --on juno --nodes 4 train.py
$ distlaunch run --on juno --detach train.py --epochs 20
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from launcher.cli.launch import SCRIPT_LAST, launch, launching, options_of_cluster
from launcher.cli.parameters import flag, parameter

if TYPE_CHECKING:
    from collections.abc import Callable

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


def for_words(words: list[str]) -> Callable[..., int]:
    """The command for these words: it also has the options of the named cluster's backend."""
    return launching(str(__doc__), _run_on, [parameter("on", _ON), *options_of_cluster(words)])


run = launching(str(__doc__), _run_on, [parameter("on", _ON)])
