"""Clusters of one slurmdbd: Slurm itself chooses which of them starts a job (`--clusters`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.slurm import control
from launcher.backends.slurm import site as sites
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site

_FEDERATED = 1 << 26
"""Ids of a federation's jobs begin here: the bits from the 27th on are the cluster of origin (Slurm's guide)."""


def placed(site: Site, handle: SlurmHandle) -> SlurmHandle:
    """The handle of a job that was just submitted, with the clusters to ask for it."""
    return {**handle, "clusters": _of(site, handle)} if site.clusters else handle


def running(site: Site, handle: SlurmHandle) -> Site:
    """The one cluster that runs the job, as scontrol and srun take no more; the site itself if none does.

    Several may know its id; of a step's job, which has no comment, one that has ended is another one.
    """
    if "," not in site.clusters:
        return site
    states = [(one, _state(one, handle)) for one in _each(site)]
    begun = [(one, state) for one, state in states if state not in ("", "PENDING", "REVOKED")]
    return next((one for one, state in begun if state == "RUNNING"), begun[0][0] if begun else site)


def _of(site: Site, handle: SlurmHandle) -> str:
    """Ids are those of one cluster, except in a federation."""
    if int(handle["job_id"].partition("+")[0]) >= _FEDERATED:
        return site.clusters
    return next((one.clusters for one in _each(site) if _state(one, handle)), site.clusters)


def _each(site: Site) -> list[Site]:
    return [sites.on(site, name) for name in site.clusters.split(",")]


def _state(site: Site, handle: SlurmHandle) -> str:
    """The job's state there; empty if the cluster does not know it, or does not answer."""
    jobs = f"--jobs={handle['job_id']}"
    try:
        done, _ = control.ask(site, "squeue", jobs, "--states=all", "--noheader", "--format=%T|%k")
    except LaunchError:
        return ""
    rows = (line.partition("|") for line in done.stdout.splitlines())
    mine = handle.get("comment")  # a step has none
    return next((state for state, _, comment in rows if mine is None or mine == comment), "")
