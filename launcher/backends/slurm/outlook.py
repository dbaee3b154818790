"""How much of a Slurm cluster is free, and when it expects to start a job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.backends import _outlook
from launcher.backends.slurm import control, inherited, nodes, times
from launcher.errors import BackendUnavailableError
from launcher.runs import directories

if TYPE_CHECKING:
    from launcher.backends.slurm.site import Site
    from launcher.results.cluster import Capacity, ExpectedStart

_FREE = ("idle", "planned")
"""No job has the node; a planned one is kept for a job that waits, and takes shorter ones until then."""

_HERE = ("localhost", "127.0.0.1", "::1")
_START = re.compile(r"to start at (\S+) using .* on nodes? (\S+)")


def capacity(site: Site, partition: str) -> Capacity:
    """Two queries. `partition`: only its nodes count."""
    rows = [_job(line) for line in _jobs(site)]
    me = site.user
    return _outlook.capacity(
        nodes.listed(site, partition),
        lambda host: host["state"] in _FREE,
        waiting=sum(state == "PENDING" for state, _, _ in rows),
        own_runs=len({comment for _, user, comment in rows if user == me and _is_run(comment)}),
    )


def start(site: Site, text: str) -> ExpectedStart:
    """When Slurm expects to start this job file, by `sbatch --test-only`, which submits nothing."""
    job_file, without = text.encode(errors="surrogateescape"), inherited.stated(text)
    done, said = control.ask(site, "sbatch", "--test-only", stdin=job_file, without=without)
    found = _START.search(said)
    if done.returncode or found is None:
        return {"at": None, "how": said.removeprefix("sbatch: error: ").removeprefix("allocation failure: ")}
    at = times.seconds(found[1])
    there = f": {found[1]} there" if at is None else ""
    return {"at": at, "how": f"Slurm's estimate{there}, on {found[2]}"}


def database(site: Site) -> tuple[str, str]:
    """The slurmdbd, if it is not this host's own, and the cluster's name there."""
    done, _ = control.ask(site, "scontrol", "show", "config")
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    values = {name.strip(): value.strip() for name, _, value in pairs}
    host = values.get("AccountingStorageHost", "")
    if not values.get("AccountingStorageType", "").endswith("slurmdbd") or host in ("", "(null)", *_HERE):
        return "", ""
    return f"{host}:{values.get('AccountingStoragePort', '')}", values.get("ClusterName", "")


def _jobs(site: Site) -> list[str]:
    done, said = control.ask(
        site, "squeue", "--noheader", "--states=PENDING,RUNNING,CONFIGURING", "--array", "--format=%T|%u|%k"
    )
    if done.returncode:
        raise BackendUnavailableError(f"squeue: {said}", hint=control.PING)
    return done.stdout.splitlines()


def _job(line: str) -> tuple[str, str, str]:
    state, user, comment = (*line.split("|", 2), "", "")[:3]
    return state, user, comment


def _is_run(comment: str) -> bool:
    return comment.startswith("distlaunch:") and directories.is_id(comment.removeprefix("distlaunch:"))
