"""`distlaunch clusters`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, argument, flag
from launcher.console import live_line, summary
from launcher.service import clusters as service
from launcher.service import observe
from launcher.settings import config
from launcher.system import amounts, escapes

if TYPE_CHECKING:
    from launcher.results.cluster import ExpectedStart, Overview, Overviews

_HEADER = ("CLUSTER", "BACKEND", "NODES FREE", "GPUS FREE", "WAITING", "OWN", "EXPECTED START")
_SOON_S = 60.0


def clusters(  # noqa: PLR0917 - one per option
    name: Annotated[
        Optional[list[str]], argument(metavar="NAME", help="Only these clusters [default: all of the settings].")
    ] = None,
    nodes: Annotated[Optional[str], flag(metavar="N|MIN:MAX", help="Nodes of the job whose start is expected.")] = None,
    nproc_per_node: Annotated[Optional[str], flag(metavar="N|auto", help="Its workers per node.")] = None,
    gpus_per_node: Annotated[Optional[str], flag(metavar="[TYPE:]N", help="Its GPUs per node.")] = None,
    time_limit: Annotated[Optional[str], flag("--time", metavar="DURATION", help="Its time limit.")] = None,
    fmt: OutputOption = None,
) -> int:
    """List the clusters of the settings: what is free, who waits, and when a job would start there.

    $ distlaunch clusters
    $ distlaunch clusters --nodes 4 --gpus-per-node 8 --time 2h
    """
    observe.directory(fmt)
    settings = config.load()
    wanted = service.known(settings, name or ())
    flags = {"nodes": nodes, "nproc_per_node": nproc_per_node, "gpus_per_node": gpus_per_node, "time": time_limit}
    service.check(flags)
    widths = [max(map(len, [*wanted, _HEADER[0]])), *map(len, _HEADER[1:])]
    found: dict[str, Overview] = {}
    if not output.as_json():
        output.text(_line(_HEADER, widths))
    with live_line.waiting(f"asking {amounts.listed(wanted)}"):
        for each in service.overviews(settings, wanted, flags):
            found[each["cluster"]] = each
            if not output.as_json():
                output.text(_line(_cells(each), widths))
    for each in found.values():
        for note in each["notes"]:
            output.warn(f"{each['cluster']}: {note}")
    data: Overviews = {"clusters": [found[each] for each in wanted]}
    output.result(data)
    return 3 if all(each["problem"] is not None for each in found.values()) else 0


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    """A row. Control characters are escaped: reasons come from clusters."""
    return (
        "  ".join(escapes.plain(cell).ljust(width) for cell, width in zip(cells, [*widths, 0], strict=False)).rstrip()
        + "\n"
    )


def _cells(found: Overview) -> tuple[str, ...]:
    if found["problem"] is not None:
        last = found["problem"].replace("\n", " ")
        return (found["cluster"], found["backend"] or "-", "-", "-", "-", "-", last)
    return (
        found["cluster"],
        found["backend"],
        _of(found["nodes_free"], found["nodes"]),
        _of(found["gpus_free"], found["gpus"]),
        *("-" if number is None else str(number) for number in (found["waiting"], found["own_runs"])),
        _start(found["start"]) if found["start"] else "-",
    )


def _of(free: int | None, every: int | None) -> str:
    return "-" if every is None else f"{free} of {every}" if every else "0"


def _start(start: ExpectedStart) -> str:
    if start["at"] is None:
        return f"unknown ({start['how']})"
    soon = start["at"] - time.time()
    when = "now" if soon < _SOON_S else f"in {summary.duration(soon)}"
    return f"{when} ({start['how']})"
