"""Several Slurm clusters of one slurmdbd, as sites have them; a federation, if wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from testbed import slurm_conf
from testbed.slurm import Slurm
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from testbed.hosts import Host

_SHARED = ("AuthInfo", "AccountingStorage")


def another(first: Slurm, name: str, hosts: tuple[Host, ...], controller: Host) -> Slurm:
    """Start another cluster of the first one's slurmdbd, with nodes and a controller of its own."""
    directory, state = first.directory / name, first.state / name
    directory.mkdir()
    state.mkdir()
    lines = slurm_conf.slurm_conf(first.options, (), first.controller, first.files).splitlines()
    shared = dict(line.split("=", 1) for line in lines if line.startswith(_SHARED))
    options = replace(first.options, accounting=False, conf={**first.options.conf, **shared, "ClusterName": name})
    made = Slurm(options, hosts, controller, directory, state, shares=first)
    made.start()
    return made


def federate(first: Slurm, *names: str) -> None:
    """Make a federation of the first cluster and these, and wait until its members know one another."""
    members = ",".join((slurm_conf.CLUSTER, *names))
    first.run(("sacctmgr", "--immediate", "add", "federation", "site", f"clusters={members}"))

    def synced() -> bool:
        return first.run(("scontrol", "show", "federation")).stdout.count("Synced:Yes") == len(names)

    wait_until("the federation to be in sync", synced, limit_s=60, every_s=0.2)
