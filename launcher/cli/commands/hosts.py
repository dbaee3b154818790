"""`distlaunch hosts --on NAME`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from launcher import output
from launcher.cli.parameters import OutputOption, flag
from launcher.console import alike_rows, live_line, summary, tables
from launcher.service import cluster, observe

if TYPE_CHECKING:
    from launcher.results.cluster import Lease, Survey, SurveyedHost, Verdict


def hosts(
    on: Annotated[str, flag("--on", metavar="NAME", help="Ask the hosts of this cluster or backend.")],
    fmt: OutputOption = None,
) -> None:
    """List a cluster's hosts: state, load, GPUs in use, who has them, who waits, and doctor's last verdict.

    $ distlaunch hosts --on rack
    $ distlaunch hosts --on rack --output json
    """
    observe.directory(fmt)
    with live_line.waiting(f"asking the hosts of {on}"):
        found = cluster.hosts(on)
    rows = [
        (
            host["host"],
            host["state"],
            _load(host),
            f"{'?' if host['gpus_used'] is None else host['gpus_used']} of {total}"
            if (total := host["gpus_total"])
            else None,
            "; ".join(map(_holder, host["leases"])) or None,
            ", ".join(map(_whose, host["waiting"])) or None,
            _verdict(host["doctor"]),
            host["problem"] or host["quarantine"],
        )
        for host in found
    ]
    header = ("HOST", "STATE", "LOAD", "GPUS", "HELD BY", "WAITING", "DOCTOR", "REASON")
    data: Survey = {"hosts": found}
    output.result(data, *tables.table(header, alike_rows.folded(rows, node=None)).splitlines())


def _load(host: SurveyedHost) -> str | None:
    cpus = None if host["cpus"] is None else f"{host['cpus']} CPUs"
    return cpus if host["load"] is None else f"{host['load']:.1f} on {cpus}"


def _verdict(verdict: Verdict | None) -> str | None:
    """`ok 2 h ago`, or which checks found something."""
    if verdict is None:
        return None
    checks = ", ".join(dict.fromkeys(each["check"] for each in verdict["findings"]))
    word = {"ok": "ok", "warn": "warn", "fail": "FAIL"}[verdict["status"]]
    return f"{word} {summary.age(verdict['time'])} ago" + (f": {checks}" if checks else "")


def _holder(lease: Lease) -> str:
    since = "" if lease["since"] is None else f" since {_clock(lease['since'])}"
    what = "" if lease["gpus"] is None else f"GPU {summary.ranks_text(tuple(lease['gpus']))}: "
    return f"{what}{_whose(lease)}{since}"


def _whose(lease: Lease) -> str:
    if lease["user"] is None and lease["run"] is not None:
        return lease["run"]
    return f"{lease['user'] or 'another user'}'s {lease['run'] or 'process'}"


def _clock(when: float) -> str:
    today = time.localtime(when)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", time.localtime(when))
