"""Runs on this machine, no matter who started them: found by the command lines of their agents."""

from __future__ import annotations

import os
import pwd
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import RunNotFoundError
from launcher.runs import directories
from launcher.system import storage

if TYPE_CHECKING:
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
            "user": _user(owners[0]),
            "job_id": None,
            "hosts": [socket.gethostname()] * len(owners),
            "command": _command(directory),
        }
        for directory, owners in runs.items()
    ]
    return sorted(rows, key=lambda row: (row["created"], row["run"]))


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
            if of_a_run and any(os.path.basename(word) == _ARCHIVE for word in words[:3]):
                # A script that stands for the interpreter has the same words: the node counts once.
                agents[spec, rank] = directory, os.stat(f"/proc/{pid}").st_uid
    return list(agents.values())


def _command(directory: Path) -> list[str]:
    """The command, if we may read the run's directory."""
    with suppress(OSError):
        spec = storage.read_json(directory / "spec.json") or {}
        return [str(word) for word in spec.get("command") or ()]
    return []


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
