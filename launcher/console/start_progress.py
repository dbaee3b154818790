"""What a run waits for until its workers run, for the live line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console import live_line

if TYPE_CHECKING:
    from launcher.runs.outcome import Outcome

_RUNS = ("terminal_opened", "stopping", "failure", "done")


class StartProgress:
    """Follows the nodes of one run from its submission to its first worker, and again after each restart."""

    def __init__(self, backend: str, nodes: int) -> None:
        self._backend, self._nodes = backend, nodes
        self._started: set[int] = set()
        self._ready: set[int] = set()
        self._runs, self._meeting = False, True
        """No worker of the round runs yet."""

        self._show("")

    def heard(self, node: int, event: str) -> None:
        """A node has told that."""
        if event == "agent_started":
            self._started.add(node)
            self._ready.discard(node)
            self._runs, self._meeting = False, True
        elif event in ("host_facts", "worker_started"):
            self._started.add(node)
            self._ready.add(node)
            self._meeting &= event != "worker_started"
        elif event in _RUNS:
            self._runs = True
        else:
            return
        self._show("")

    def state(self, outcome: Outcome) -> None:
        """What the cluster says of the run."""
        if outcome.state == "pending" and not self._started:
            self._show(outcome.detail or "")

    def _show(self, detail: str) -> None:
        count, started = self._nodes, len(self._started)
        importing = started - len(self._ready & self._started)
        if self._runs or not (importing or self._meeting or started < count):
            live_line.withdraw()
        elif not started:
            live_line.show(f"waiting for {self._backend}{detail and ': '}{detail}")
        elif started < count:
            live_line.show(f"waiting for nodes: {started} of {count} started", (started, count))
        elif importing:
            where = f" on {importing} of {count} nodes" if count > 1 else ""
            live_line.show(f"importing torch{where}", (count - importing, count) if count > 1 else None)
        else:
            live_line.show("waiting for the nodes to meet")
