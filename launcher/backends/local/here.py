"""Runs on this machine, no matter who started them: found by the command lines of their agents."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.lease import gpus
from launcher.agent.system import facts, users
from launcher.backends._outlook import Outlook, capacity, now, unknown
from launcher.errors import RunNotFoundError
from launcher.runs import directories
from launcher.system import amounts, storage

if TYPE_CHECKING:
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.runs.records import Run

_ARCHIVE, _SPEC, _RANK = b"agent.pyz", b"--spec", b"--node-rank"


def found() -> list[ClusterRun]:
    """The runs with an agent that runs now, the oldest first."""
    runs: dict[Path, list[int]] = {}
    for directory, owner in _agents():
        runs.setdefault(directory, []).append(owner)
    rows: list[ClusterRun] = [
        {
            "run": directory.name,
            "state": "running",
            "nodes": str(len(owners)),
            "created": directories.created(directory.name),
            "user": users.name_of(owners[0]),
            "job_id": None,
            "hosts": [socket.gethostname()] * len(owners),
            "command": _command(directory),
        }
        for directory, owners in runs.items()
    ]
    return sorted(rows, key=lambda row: (row["created"], row["run"]))


def surveyed() -> SurveyedHost:
    """This machine, with the runs that have agents here. Leases are only for runs over SSH."""
    uses = gpus.found()
    return {
        "host": socket.gethostname(),
        "state": "up",
        "problem": None,
        "load": facts.load_average(),
        "cpus": os.cpu_count(),
        "gpus": [
            {"gpu": use.gpu, "used_mib": use.used_mib, "total_mib": use.total_mib, "busy": use.busy} for use in uses
        ],
        "gpus_total": len(uses),
        "gpus_used": sum(use.busy for use in uses),
        "leases": [
            {"run": run["run"], "user": run["user"], "since": run["created"] or None, "gpus": None} for run in found()
        ],
        "waiting": [],
        "quarantine": None,
        "doctor": None,
    }


def outlook(wanted: int | None) -> Outlook:
    """One node, on which every job starts at once; `wanted`: GPUs."""
    host = surveyed()
    own = {lease["run"] for lease in host["leases"] if lease["user"] == users.name_of(os.getuid())}
    found = capacity([host], lambda host: not host["leases"], waiting=0, own_runs=len(own))
    if wanted is not None and wanted > len(host["gpus"]):
        return Outlook(found, unknown(f"it has only {amounts.counted(len(host['gpus']), 'GPU')}"))
    return Outlook(found, now("there is no queue"))


def adopt(text: str, runs_root: Path) -> Run:
    """Add the run whose id starts with `text` to the runs in `runs_root`; it stays where it is."""
    every = {directory.name: directory for directory, _ in _agents()}
    names = sorted(name for name in every if name.startswith(text))
    if len(names) != 1:
        what = f"{text!r} matches {len(names)} runs" if names else f"no run {text!r}"
        raise RunNotFoundError(f"{what} on this machine", hint=", ".join(names or sorted(every)[-5:]) or None)
    return directories.link(runs_root, every[names[0]])


def _agents() -> list[tuple[Path, int]]:
    """The run's directory and the owner's uid of each agent that runs, one per node."""
    agents: dict[tuple[bytes, bytes], tuple[Path, int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, ValueError, IndexError):
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            spec, rank = (words[words.index(name) + 1] for name in (_SPEC, _RANK))
            directory = Path(os.fsdecode(os.path.dirname(spec)))
            of_a_run = spec.endswith(b"/spec.json") and directories.is_id(directory.name)
            if of_a_run and any(os.path.basename(word) == _ARCHIVE for word in words[:4]):
                # A script that stands for the interpreter has the same words: the node counts once.
                agents[spec, rank] = directory, os.stat(f"/proc/{pid}").st_uid
    return list(agents.values())


def _command(directory: Path) -> list[str]:
    """The command, if we may read the run's directory."""
    with suppress(OSError):
        spec = storage.read_json(directory / "spec.json") or {}
        return [str(word) for word in spec.get("command") or ()]
    return []
