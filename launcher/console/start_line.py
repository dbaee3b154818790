"""The live line of a run until its workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console import live_line
from launcher.runs.start_progress import StartProgress

if TYPE_CHECKING:
    from launcher.runs.outcome import Outcome


class StartLine:
    """Shows a run's progress towards its first worker."""

    def __init__(self, backend: str, nodes: int) -> None:
        self._backend = backend
        self._progress = StartProgress(nodes)
        self._show("")

    def heard(self, node: int, event: str) -> None:
        """Take an event of a node into account."""
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
            live_line.withdraw()
            return
        phase, done, count = present
        if phase == "queued":
            live_line.show(f"waiting for {self._backend}{detail and ': '}{detail}")
        elif phase == "starting":
            live_line.show(f"waiting for nodes: {done} of {count} started", (done, count))
        elif phase == "importing":
            where = f" on {count - done} of {count} nodes" if count > 1 else ""
            live_line.show(f"importing torch{where}", (done, count) if count > 1 else None)
        else:
            live_line.show("waiting for the nodes to meet")
