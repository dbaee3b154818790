"""`--stragglers quarantine`: hosts that were slow for most of a run are excluded from later ones on its cluster."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.system.folding import folded
from launcher.errors import LaunchError
from launcher.settings.quarantine import QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.results.run import RunState
    from launcher.runs.records import Run

_ONE_IN = 8
"""At most one of so many hosts of a run is put aside after it, and always one."""

_NOTE = "put_aside.json"
"""In the run's directory: which hosts; once, so that a host that was released since then stays released."""


def after(run: Run, state: RunState) -> None:
    """Do it for a run that has ended, once, if it was asked for. Prints what is put aside; never raises."""
    asked = run.settings.get("stragglers") or {}
    if asked.get("value") != QUARANTINE or not run.cluster or run.tasks or state["exit_code"] is None:
        return
    try:
        if not (run.path / _NOTE).exists():
            _look(run, run.cluster, _names(run, state))
    except LaunchError as error:
        output.warn(f"slow hosts are not put into quarantine: {error.message}")


def _look(run: Run, cluster: str, hosts: Mapping[int, str]) -> None:
    # Imported here: few runs ask for it.
    from launcher.runs import slow_hosts
    from launcher.settings import quarantine
    from launcher.system import storage

    shared = Counter(hosts.values())
    names = [hosts.get(node, "") for node in range(len(run.hosts))]
    found = [one for one in slow_hosts.read(run, names) if one["host"] and shared[one["host"]] == 1]
    kept = found[: _most(run, cluster, {*shared})] if found else []
    reasons = {one["host"]: f"slow in {run.id}: {one['message']}" for one in kept}
    storage.write_whole(run.path / _NOTE, storage.encode_json(reasons))
    if reasons:
        quarantine.add(cluster, reasons, os.environ)
    for one in kept:
        back = f"distlaunch doctor --on {cluster} --release {one['host']}"
        output.warn(f"{one['host']} is in {cluster}'s quarantine from now on: {one['message']}; to undo it: {back}")
    few = f"for another run of this size, `distlaunch hosts --on {cluster}` shows too few hosts"
    if left := [one["host"] for one in found[len(kept) :]]:
        was = "was slow, and is" if len(left) == 1 else "were slow, and are"
        output.warn(f"{folded(left)} {was} not put into quarantine: {few}")


def _most(run: Run, cluster: str, used: set[str]) -> int:
    """How many may be put aside, so that a run of this size still finds its hosts. Raises `LaunchError`."""
    from launcher.service import cluster as clusters

    hosts = clusters.hosts(cluster)
    gpus = min((host["gpus_total"] or 0 for host in hosts if host["host"] in used), default=0)
    sound = [host for host in hosts if host["problem"] is None and host["quarantine"] is None]
    usable = [host for host in sound if (host["gpus_total"] or 0) >= gpus]
    return max(0, min(len(usable) - len(run.hosts), max(1, len(run.hosts) // _ONE_IN)))


def _names(run: Run, state: RunState) -> dict[int, str]:
    """Host of each node: the one chosen at submission, else the one that its agent reports."""
    told = {number: str(node["host"] or "") for number, node in enumerate(state["nodes"])}
    return told | (dict(enumerate(run.hosts)) if isinstance(run.known.get("hosts"), list) else {})
