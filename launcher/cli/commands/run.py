"""Run on a named cluster, with the backend and the settings of [clusters.NAME].

$ distlaunch run --on juno --nodes 4 train.py
$ distlaunch run --on juno,lab --workers 32 train.py --epochs 20
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

from launcher.cli.launch import SCRIPT_LAST, launch, launching, options_of_cluster
from launcher.cli.parameters import flag, parameter
from launcher.errors import SpecError
from launcher.service.request import are_several
from launcher.settings.run_file import split

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT_SETTINGS = SCRIPT_LAST


def _run_on(values: dict[str, Any]) -> int:
    if are_several(values["on"]):
        if values.get("roles") or split(values.get("role"))[1]:
            raise SpecError("a run with roles cannot be queued on several clusters", hint="--on with one name")
        from launcher.cli import racing  # few launches need it

        return racing.launch({**values, "cluster": values["on"]})
    for name in ("start", "race"):
        if values[name] is not None:
            raise SpecError(f"--{name} is for several clusters", hint="--on juno,lab, or --on any")
    return launch(None, {**values, "cluster": values["on"]})


_ON = Annotated[
    str,
    flag(
        "--on",
        aliases=("--cluster",),
        metavar="NAME[,NAME...]|any",
        help="Cluster to run on, by its name in the settings; of several, the one that starts the run first.",
        group="job",
    ),
]


def for_words(words: list[str]) -> Callable[..., int]:
    """The command for these words: it also has the options of the named cluster's backend."""
    return launching(str(__doc__), _run_on, [*_OWN, *options_of_cluster(words)])


_OWN = [
    parameter("on", _ON),
    parameter(
        "start",
        Annotated[
            Optional[str],
            flag(
                metavar="soonest|first",
                help="Of several clusters, soonest: one that can start the run now gets it at once, else as first: it "
                "is queued on several, and the first that starts it gets it [default: soonest].",
                group="job",
            ),
        ],
        None,
    ),
    parameter(
        "race",
        Annotated[Optional[int], flag(metavar="K", help="Queue it on at most K clusters [default: 3].", group="job")],
        None,
    ),
]

run = launching(str(__doc__), _run_on, _OWN)
