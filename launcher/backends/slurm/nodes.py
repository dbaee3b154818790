"""The nodes of the cluster as sinfo lists them, with the runs that have them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.schedulers.slurm import SlurmError, expand
from launcher.backends.slurm import control, jobs, states
from launcher.errors import BackendUnavailableError

if TYPE_CHECKING:
    from launcher.backends.slurm.site import Site
    from launcher.results.cluster import Lease, SurveyedHost

WIDTHS = {"NodeList": 128, "StateLong": 32, "CPUsLoad": 16, "CPUs": 16, "Gres": 512, "GresUsed": 512, "Reason": 512}
"""Columns of sinfo, and how many characters each has."""

_GPUS = re.compile(r"(?:^|,)gpu(?::[^,:(]+)?:(\d+)")
"""In `gpu:a100:4(S:0-1),gpu:2`."""

_FINE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned"})
_UNKNOWN = ("", "none", "N/A", "(null)")


def found(site: Site) -> list[SurveyedHost]:
    """All nodes that this user may see, in Slurm's order, with who has them. Raises `BackendUnavailableError`."""
    holders = _holders(site)
    return [{**host, "leases": holders.get(host["host"], [])} for host in listed(site)]


def listed(site: Site, partition: str = "") -> list[SurveyedHost]:
    """The nodes, or those of some partitions, without who has them."""
    columns = ",".join(f"{name}:{width}" for name, width in WIDTHS.items())
    where = f"--partition={partition}" if partition else "--all"
    done, said = control.ask(site, "sinfo", "--Node", where, "--noheader", f"--Format={columns}")
    if done.returncode:
        raise BackendUnavailableError(f"sinfo: {said}", hint=control.PING)
    hosts = map(_host, done.stdout.splitlines())
    return list({host["host"]: host for host in hosts}.values())  # a node has a line for each of its partitions


def _host(line: str) -> SurveyedHost:
    fields, at = {}, 0
    for name, width in WIDTHS.items():
        fields[name] = line[at : at + width].strip()
        at += width
    state = fields["StateLong"]
    fine = state.strip("*~#!%$@^-+") in _FINE and not state.endswith("*")
    reason = "" if fields["Reason"] in _UNKNOWN else fields["Reason"]
    total, used = (sum(map(int, _GPUS.findall(fields[name]))) for name in ("Gres", "GresUsed"))
    return {
        "host": fields["NodeList"],
        "state": state,
        "problem": reason or (None if fine else state),
        "load": _number(fields["CPUsLoad"]),
        "cpus": int(fields["CPUs"]) if fields["CPUs"].isdecimal() else None,
        "gpus": [],
        "gpus_total": total,
        "gpus_used": used,
        "leases": [],
        "waiting": [],
        "quarantine": None,
        "doctor": None,
    }


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def _holders(site: Site) -> dict[str, list[Lease]]:
    """The running runs of distlaunch, by node."""
    leases: dict[str, list[Lease]] = {}
    for job in jobs.queued(site):
        if states.meaning(job.state) != "running":
            continue
        with suppress(SlurmError):
            for host in expand(job.nodelist):
                leases.setdefault(host, []).append({"run": job.run, "user": job.user, "since": None, "gpus": None})
    return leases
