"""The processes of a run by their kinds, on every backend; found by a mark in their command line or environment."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from testbed.processes import Process

LAUNCHER, AGENT, SERVER, WORKER = "launcher", "agent", "fork server", "worker"
GROUP, TRANSPORT = "process of a worker group", "transport"
"""Kinds of processes. `TRANSPORT` is whatever carries the run: ssh, its remote end, srun, a job's shell."""


class Found(NamedTuple):
    """A process of a run."""

    process: Process
    kind: str
    node: int | None
    """The node rank of its agent."""

    inner_pid: int
    """Its pid as it sees it: a container has its own numbers."""


def of_run(mark: str, script: str, launcher: int | None) -> list[Found]:
    """All processes with that mark, and all below its agents; `script` is the workers' file, `launcher` a pid."""
    everything = {int(pid): _parent(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    marked = {pid for pid in everything if _is_marked(pid, mark)}
    agents = {pid: node for pid in marked if (node := _agent(pid)) is not None}
    servers = {pid: agents[parent] for pid, parent in everything.items() if parent in agents}
    below = {pid: servers[parent] for pid, parent in everything.items() if parent in servers}
    found: list[Found] = []
    for pid in sorted({*marked, *servers, *below}):
        process = Process.of(pid)
        if process is None or pid == os.getpid():
            continue
        kind, node = TRANSPORT, None
        if pid == launcher:
            kind = LAUNCHER
        elif pid in agents:
            kind, node = AGENT, agents[pid]
        elif pid in servers:
            kind, node = SERVER, servers[pid]
        elif pid in below:
            kind, node = (WORKER if script in process.command() else GROUP), below[pid]
        found.append(Found(process, kind, node, _inner(pid)))
    return found


def _is_marked(pid: int, mark: str) -> bool:
    with contextlib.suppress(OSError):
        return any(mark.encode() in Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    return False


def _agent(pid: int) -> int | None:
    """The node rank of an agent."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        if not re.search(r"python\S* (-\S+ )*\S+\.pyz .*--spec ", text):
            return None
        environ = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        found = re.search(r"--node-rank (\d+)", text) or re.search(
            r"\0(?:SLURM_NODEID|JOB_COMPLETION_INDEX)=(\d+)", environ
        )
        return int(found.group(1)) if found else None
    return None


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _inner(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(re.findall(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])
    return pid
