"""Real agents and fork servers, many on this host, with programs that need no framework as their workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900.0
LOOK_S = 0.1
SCRIPT = """#!/bin/sh
if [ "$DISTLAUNCH_RANK" = 0 ]; then
    while [ ! -e "$1" ]; do sleep 0.1; done
    rm "$1"
    exit 3
fi
exec sleep 3600
"""


class Agents(NamedTuple):
    """One size; all times are by the agents' own events."""

    nodes: int
    run_s: float
    """A whole run of workers that end at once, as a command."""

    mib: float
    """Of memory for each node: that of its agent, fork server and worker group, with its share of common pages."""

    failure_s: float
    """From the exit of a worker that fails to the end of the last agent."""

    lost_s: float
    """The same, from the death of an agent."""

    restart_s: float
    """From the exit of a worker that fails to the start of the last worker of the next round."""

    cancel_s: float
    """From the command `cancel` to the end of the last agent."""


class Run:
    """A detached run."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.nodes = nodes
        self.go = directory / f"go-{time.monotonic_ns()}"
        script = directory / "worker.sh"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "DISTLAUNCH_RUNS_DIR": str(directory / "runs")}
        self._argv = ("local", "--contract", "env", "--nodes", str(nodes), "--nproc-per-node", "1", "--no-python")
        self._script, self._runs = script, directory / "runs"
        self.id = ""

    def distlaunch(self, *words: str) -> str:
        """Run a command; its output."""
        argv = [sys.executable, "-m", "launcher", *words]
        return subprocess.run(argv, env=self._env, capture_output=True, text=True, check=True).stdout

    def whole(self) -> float:
        """The seconds of a run whose workers end at once."""
        began = time.monotonic()
        self.distlaunch(*self._argv, "/bin/true")
        return time.monotonic() - began

    def start(self, *options: str) -> None:
        """Start the workers that wait, and wait for them."""
        self.id = self.distlaunch(*self._argv, *options, "--detach", str(self._script), str(self.go)).strip()
        self.until("worker_started")

    def fail(self) -> float:
        """Have one worker fail; when that was."""
        self.go.touch()
        return min(float(event["time"]) for event in self.until("worker_exited", but=self.nodes - 1))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name, of all nodes."""
        wanted, found = f'"event":"{name}"'.encode(), []
        for path in (self._runs / self.id / "nodes").glob("*/stream"):
            found += [json.loads(line) for line in path.read_bytes().splitlines() if wanted in line]
        return found

    def until(self, name: str, *, but: int = 0, round_: int = 0) -> list[dict[str, Any]]:
        """Wait until all nodes, but some, have written such an event, of a round if it has one."""
        limit = time.monotonic() + LIMIT_S
        while True:
            found = [event for event in self.events(name) if event.get("round", round_) == round_]
            if len(found) >= self.nodes - but:
                return found
            if time.monotonic() > limit:
                raise SystemExit(f"{len(found)} of {self.nodes} nodes have written {name} in {LIMIT_S:.0f} s")
            time.sleep(LOOK_S)

    def ended(self, since: float, *, but: int = 0) -> float:
        """The seconds from that time to the last node's end."""
        return max(float(event["time"]) for event in self.until("done", but=but)) - since

    def mib(self) -> float:
        """The proportional memory of all processes of the run but its workers, for each node."""
        workers = {event["pid"] for event in self.events("worker_started")}
        found = {event["pid"] for event in self.events("agent_started")}
        parents = _parents()
        while more := {pid for pid, parent in parents.items() if parent in found} - found - workers:
            found |= more
        return sum(map(_pss_kib, found)) / 1024 / self.nodes


def _parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _pss_kib(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def measure(nodes: int) -> Agents:
    """Start runs of this size, and end each in another way."""
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name), nodes)
        whole_s = run.whole()
        run.start()
        mib = run.mib()
        failure_s = run.ended(run.fail())
        lost = Run(Path(name), nodes)
        lost.start()
        victim = next(event for event in lost.events("agent_started") if event["node"] == nodes - 1)
        killed_at = time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        lost_s = lost.ended(killed_at, but=1)
        again = Run(Path(name), nodes)
        again.start("--max-restarts", "1")
        failed_at = again.fail()
        restart_s = max(float(event["time"]) for event in again.until("worker_started", round_=1)) - failed_at
        asked_at = time.time()
        again.distlaunch("cancel", again.id)
        return Agents(nodes, whole_s, mib, failure_s, lost_s, restart_s, again.ended(asked_at))
