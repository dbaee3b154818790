"""The live line of a run until its workers run, while they are restarted, and from a request to stop to the end."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from launcher.agent.system.folding import folded
from launcher.console import live_line
from launcher.runs.start_progress import StartProgress
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from launcher.runs.outcome import Outcome

_NAMED = 4
"""A live line has room for so many names or ranges."""

_MANY, _EVERY_S = 64, 0.25
"""The line of more nodes is made at most this often: it names those that are missing."""


class StartLine:
    """Shows a run's progress towards its first worker, towards a restart of its workers, and towards its end."""

    def __init__(self, backend: str, hosts: Sequence[str]) -> None:
        self._backend, self._hosts = backend, hosts
        self._progress = StartProgress(len(hosts))
        self._stopping = False
        self._ended: set[int] = set()
        self._left: dict[int, int] = {}
        """How many workers a node waits for."""

        self._limit_s: object = None
        self._restart = ""
        """Which restart of the workers is under way."""

        self._stale, self._next = False, 0.0
        self.show()

    def heard(self, node: int, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event of a node into account."""
        if event == "agent_started":
            self._stopping = False
            self._ended.discard(node)
        elif event == "done":
            self._ended.add(node)
        self._stopping |= event in ("stopping", "failure")
        if self._progress.heard(node, event) | self._workers_end(node, event, fields):
            self._stale = True
            if len(self._hosts) <= _MANY:
                self.tick(math.inf)

    def tick(self, now: float) -> None:
        """Show what has changed; of many nodes, a few times per second."""
        if self._stale and now >= self._next:
            self._stale, self._next = False, time.monotonic() + _EVERY_S
            self.show()

    def _workers_end(self, node: int, event: str, fields: Mapping[str, Any]) -> bool:
        """Take an event into account that shows which workers still have to end. Returns whether it is one."""
        if event == "restart":
            self._restart = f"restarting ({fields.get('restarts')} of {fields.get('max_restarts')}): "
        elif event == "waiting" and isinstance(count := fields.get("workers"), int):
            self._left[node], self._limit_s = count, fields.get("limit_s")
        elif event == "worker_exited" and node in self._left:
            self._left[node] -= 1
        elif event in ("rendezvous", "done"):
            self._left.pop(node, None)
            self._restart = ""
        else:
            return False
        return True

    def ending(self) -> None:
        """Note that the run is being ended: until its agents report that, this takes the backend's time."""
        self._stopping = True
        self.show()

    def state(self, outcome: Outcome) -> None:
        """Show why the run is pending, or what the backend knows of one that has not reported yet."""
        present = self._progress.present()
        if outcome.state not in ("pending", "starting"):
            return
        if present is None and outcome.state == "pending" and not self._unended():
            detail = f": {outcome.detail}" if outcome.detail else ""
            live_line.show(f"waiting for {self._backend} to start it again{detail}")
        elif present is not None and present.phase == "queued":
            self.show(outcome.detail or "")

    def _unended(self) -> list[int]:
        return [node for node in range(len(self._hosts)) if node not in self._ended]

    def _show_end(self) -> None:
        """Show what ends, once workers run; nothing if nothing does."""
        left, workers, count = self._unended(), sum(self._left.values()), len(self._hosts)
        if self._stopping and left:
            where = f": {count - len(left)} of {count} have, not {self._names(left)}" if count > 1 else ""
            live_line.show(f"waiting for the node{'s' * (count > 1)} to end{where}")
        elif self._stopping:
            live_line.show(f"waiting for {self._backend} to report the end")
        elif workers > 0:
            limit = f" up to {self._limit_s:g} s" if isinstance(self._limit_s, (int, float)) else ""
            live_line.show(f"{self._restart}waiting{limit} for {amounts.counted(workers, 'worker')} to end")
        elif self._restart:
            live_line.show(f"{self._restart}waiting for the {'nodes to meet' if self._left else 'workers to end'}")
        else:
            live_line.withdraw()

    def show(self, detail: str = "") -> None:
        """Show what is waited for now. `detail`: why a run is queued."""
        present = self._progress.present()
        if present is None:
            self._show_end()
            return
        phase, done, count = present
        if phase == "queued":
            live_line.show(f"waiting for {self._backend}{detail and ': '}{detail}")
        elif phase == "starting":
            absent = self._names(self._progress.missing())
            live_line.show(f"waiting for nodes: {done} of {count} started, not {absent}", (done, count))
        elif phase == "importing":
            where = f" on {count - done} of {count} nodes" if count > 1 else ""
            live_line.show(f"importing torch{where}", (done, count) if count > 1 else None)
        else:
            live_line.show("waiting for the nodes to meet")

    def _names(self, nodes: list[int]) -> str:
        """The nodes' hosts, if the plan has one for each node."""
        have = len(set(self._hosts)) == len(self._hosts)
        return folded((self._hosts[node] if have else f"node {node}" for node in nodes), _NAMED)
