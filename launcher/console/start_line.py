"""The live line of a run until its workers run, and again from the first request to stop until all nodes have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console import live_line
from launcher.runs.start_progress import StartProgress
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.runs.outcome import Outcome


class StartLine:
    """Shows a run's progress towards its first worker, and towards its end once it is being stopped."""

    def __init__(self, backend: str, hosts: Sequence[str]) -> None:
        self._backend, self._hosts = backend, hosts
        self._progress = StartProgress(len(hosts))
        self._stopping = False
        self._ended: set[int] = set()
        self._show("")

    def heard(self, node: int, event: str) -> None:
        """Take an event of a node into account."""
        if event == "agent_started":
            self._stopping = False
            self._ended.discard(node)
        elif event == "done":
            self._ended.add(node)
        self._stopping |= event in ("stopping", "failure")
        if self._progress.heard(node, event):
            self._show("")

    def state(self, outcome: Outcome) -> None:
        """Show why the run is pending, if it is."""
        present = self._progress.present()
        if outcome.state == "pending" and present is not None and present.phase == "queued":
            self._show(outcome.detail or "")

    def _show(self, detail: str) -> None:
        present = self._progress.present()
        if present is None:
            left = [node for node in range(len(self._hosts)) if node not in self._ended]
            if self._stopping and left:
                count = len(self._hosts)
                where = f": {count - len(left)} of {count} have, not {self._names(left)}" if count > 1 else ""
                live_line.show(f"waiting for the node{'s' * (count > 1)} to end{where}")
            else:
                live_line.withdraw()
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
        return amounts.listed(self._hosts[node] if have else f"node {node}" for node in nodes)
