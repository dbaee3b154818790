"""`distlaunch hosts` on Slurm: its nodes, why some cannot be used, and the runs that have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from launcher.backends.slurm import nodes
from tests.slurm.commands import pretend
from tests.slurm.scripts import WAITS

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.slurm.conftest import Login


@pytest.mark.slurm
def test_nodes_are_listed_with_their_states_reasons_and_runs(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login.detach("waits", "--nodes", "2", "waits.py")
    run.wait_for("ready", 2)
    busy = {node["host"] for node in run.status()["nodes"]}
    every = set(login.slurm.run(("sinfo", "--noheader", "--Node", "--format=%N")).stdout.split())
    last = max(every - busy)
    login.slurm.run(("scontrol", "update", f"NodeName={last}", "State=DRAIN", "Reason=bad fan, see 4711"))
    try:
        shown = login("hosts", "--on", "slurm").stdout
        told = login("hosts", "--on", "slurm", "--output", "json").json["result"]["hosts"]
    finally:
        login.slurm.run(("scontrol", "update", f"NodeName={last}", "State=RESUME"))
        login("cancel", run.id)

    hosts = {host["host"]: host for host in told}
    assert (set(hosts), len(told)) == (every, len(every)), "each node once, whatever its partitions"
    assert {name for name, host in hosts.items() if host["leases"]} == busy
    assert hosts[min(busy)]["leases"] == [{"run": run.id, "user": "root", "since": None, "gpus": None}]
    assert hosts[min(busy)]["problem"] is None
    assert (hosts[last]["state"], hosts[last]["problem"]) == ("drained", "bad fan, see 4711")
    assert re.search(rf"(?m)^{last} +drained .* bad fan, see 4711$", shown), shown


def test_gpus_in_use_are_counted_from_what_sinfo_prints(distlaunch: Cli) -> None:
    rows = [
        ("n1", "mixed", "0.50", "8", "gpu:a100:4(S:0-1),gpu:2,shard:8", "gpu:a100:3(IDX:0-2),gpu:0(IDX:N/A)", "none"),
        ("n2", "down*", "N/A", "8", "(null)", "gpu:0", "Not responding"),
        ("n2", "down*", "N/A", "8", "(null)", "gpu:0", "Not responding"),
        ("n3", "unknown*", "N/A", "?", "(null)", "", "none"),
    ]
    widths = tuple(nodes.WIDTHS.values())
    lines = ["".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)) for row in rows]
    distlaunch.write("rows", "\n".join([*lines, ""]))
    env = pretend(distlaunch, {"sinfo": "cat rows"})

    one, two, three = distlaunch("hosts", "--on", "slurm", "--output", "json", env=env).json["result"]["hosts"]
    refused = distlaunch("hosts", "--on", "slurm", env=pretend(distlaunch, {"sinfo": "echo no >&2; exit 1"}))

    assert (one["gpus_total"], one["gpus_used"], one["load"], one["problem"]) == (6, 3, 0.5, None)
    assert (two["gpus_total"], two["load"], two["problem"]) == (0, None, "Not responding")
    assert (three["cpus"], three["problem"]) == (None, "unknown*")
    assert (refused.exit_code, refused.stderr.count("error[")) == (3, 1)
