"""The agent processes of a local run. The interpreter may be a wrapper script that runs the agent as a child."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.agent.system import cgroup, processes
from launcher.agent.system.folding import folded
from launcher.errors import CommandError
from launcher.runs import status
from launcher.runs.node_report import NodeReport
from launcher.system import proc, storage
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.local.handle import LocalHandle

_HEARS_S = 1.0
"""How long an agent may take to exit after its second SIGTERM."""

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Agent:
    """One node's agent: the process that was started, in its own session, and the one below it that recorded itself."""

    directory: Path
    """The node's directory within the run's."""

    started: proc.Identity

    @property
    def begun(self) -> bool:
        """Whether it runs or has run; an agent that gets no start signal exits without a record."""
        return self.started.pid > 0 and (bool(self.living()) or self._note() is not None)

    def living(self) -> list[proc.Identity]:
        """The live processes of the agent and of the script that started it."""
        noted = self._noted()
        with storage.read_errors("/proc"):
            known = [identity for identity in dict.fromkeys(filter(None, (noted, self.started))) if identity.alive()]
            return known or self._of_session()

    def send(self, number: int) -> None:
        """Signal only the agent if its pid is known: a script that gets the signal too may forward it or exit first."""
        noted = self._noted()
        if noted is not None and noted.alive():
            noted.send(number)
        elif self.started.alive():
            self.started.send_group(number)
        else:
            for identity in self._of_session():
                identity.send(number)

    def ask(self, number: int) -> bool:
        """Signal the agent if it has recorded itself: before that, it handles no signals and would be ended.

        Returns False if it may still do so.
        """
        noted = self._noted()
        if noted is not None and noted.alive():
            noted.send(number)
            return True
        return not self.living()

    def ask_unrecorded(self, number: int) -> bool:
        """The same for an agent whose record is missing, as on a full disk, or names a pid of another namespace.

        That it has begun, its file or its stream tells.
        """
        told = self._told()
        if told.result is None and not told.failing:  # else what started it is only cleaning up
            if told.started is None and told.workers is None and not self._record.exists():
                return False
            self.send(number)
        return True

    def kill(self) -> None:
        """Send SIGKILL to the agent, all its descendants, and the script that started it."""
        for identity in self.living():
            processes.kill_tree(identity.pid, identity.start_ticks)

    def forget(self) -> None:
        """Remove the record of an earlier agent."""
        self._record.unlink(missing_ok=True)

    def remove_cgroup(self) -> None:
        """End what an exited agent left behind, if it had a cgroup."""
        if path := (self._note() or {}).get("cgroup"):
            cgroup.remove(path)

    @property
    def _record(self) -> Path:
        return self.directory / "agent.json"

    def _told(self) -> NodeReport:
        """What the stream tells of the attempt that was started last."""
        attempt = (storage.read_json(self.directory.parent.parent / "spec.json") or {}).get("attempt")
        report = NodeReport(node=int(self.directory.name), attempt=attempt if isinstance(attempt, int) else 0)
        for record in status.ends(self.directory / "stream"):
            report.add(record)
        return report

    def _note(self) -> dict[str, Any] | None:
        return storage.read_json(self._record)

    def _noted(self) -> proc.Identity | None:
        pid, ticks = ((self._note() or {}).get(name) for name in ("pid", "start_ticks"))
        return proc.Identity(pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) and pid > 0 else None

    def _of_session(self) -> list[proc.Identity]:
        """Processes left in the session of a script that exited first, if they were started as this run's agent."""
        spec = os.fsencode(self.directory.parent.parent / "spec.json")
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.started.pid > 0 else ():
            with suppress(OSError):
                if os.getsid(pid) == self.started.pid and spec in Path(f"/proc/{pid}/cmdline").read_bytes().split(
                    b"\0"
                ):
                    ticks = processes.start_ticks(pid)
                    found += (
                        [proc.Identity(pid, ticks)] if ticks is not None and ticks >= self.started.start_ticks else []
                    )
        return found


def of(handle: LocalHandle) -> list[Agent]:
    """The run's agents, by node rank."""
    nodes = Path(handle["run_dir"]) / "nodes"
    started = (proc.Identity(agent["pid"], agent["start_ticks"]) for agent in handle["agents"])
    return [Agent(nodes / str(rank), identity) for rank, identity in enumerate(started)]


def ask(agents: Sequence[Agent], number: int, *, patience_s: float) -> None:
    """Signal all agents; those that are only about to begin get it then. Raises `CommandError` if they take longer."""
    limit, left = time.monotonic() + patience_s, list(agents)
    while left := [agent for agent in left if not (agent.ask(number) or agent.ask_unrecorded(number))]:
        if time.monotonic() > limit:
            which = folded(int(agent.directory.name) for agent in left)
            raise CommandError(f"node {which}: the agent has not begun in {patience_s:.0f} s")
        time.sleep(_LOOK_S)


def force(agents: Sequence[Agent]) -> None:
    """Send the second SIGTERM, on which an agent kills its workers; then SIGKILL to agents that have not exited."""
    time.sleep(0.05)  # two pending SIGTERMs would merge into one
    for agent in agents:
        agent.send(signal.SIGTERM)
    limit = time.monotonic() + _HEARS_S
    while (left := [agent for agent in agents if agent.living()]) and time.monotonic() < limit:
        time.sleep(_LOOK_S)
    for agent in left:
        agent.kill()
