"""`distlaunch hosts --on NAME`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from launcher import output
from launcher.cli.parameters import OutputOption, flag
from launcher.console import live_line, summary, tables
from launcher.service import cluster, observe

if TYPE_CHECKING:
    from launcher.results.cluster import Lease, Survey, SurveyedHost


def hosts(
    on: Annotated[str, flag("--on", metavar="NAME", help="Ask the hosts of this cluster or backend.")],
    fmt: OutputOption = None,
) -> None:
    """List a cluster's hosts: load, GPUs in use, who has them since when, who waits, and quarantine.

    $ distlaunch hosts --on rack
    $ distlaunch hosts --on rack --output json
    """
    observe.directory(fmt)
    with live_line.waiting(f"asking the hosts of {on}"):
        found = cluster.hosts(on)
    rows = [
        (
            host["host"],
            "unreachable" if host["problem"] is not None else "up",
            None if host["load"] is None else f"{host['load']:.1f} on {host['cpus']} CPUs",
            _gpus(host),
            "; ".join(map(_holder, host["leases"])) or None,
            ", ".join(map(_whose, host["waiting"])) or None,
            host["problem"] or host["quarantine"],
        )
        for host in found
    ]
    data: Survey = {"hosts": found}
    output.result(
        data, *tables.table(("HOST", "STATE", "LOAD", "GPUS", "HELD BY", "WAITING", "REASON"), rows).splitlines()
    )


def _gpus(host: SurveyedHost) -> str | None:
    """How many of the GPUs are leased or in use."""
    if not host["gpus"]:
        return None
    leased = {gpu for lease in host["leases"] for gpu in lease["gpus"] or ()}
    used = [gpu for gpu in host["gpus"] if gpu["busy"] or gpu["gpu"] in leased]
    return f"{len(used)} of {len(host['gpus'])}"


def _holder(lease: Lease) -> str:
    since = "" if lease["since"] is None else f" since {_clock(lease['since'])}"
    what = "" if lease["gpus"] is None else f"GPU {summary.ranks_text(tuple(lease['gpus']))}: "
    return f"{what}{_whose(lease)}{since}"


def _whose(lease: Lease) -> str:
    return f"{lease['user'] or 'another user'}'s {lease['run'] or 'process'}"


def _clock(when: float) -> str:
    today = time.localtime(when)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", time.localtime(when))
