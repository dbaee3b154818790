"""`--fetch`: the files that a launch fetches at the end of its run."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.console import live_line
from launcher.errors import LaunchError
from launcher.service import fetch
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from launcher.results.files import Fetched
    from launcher.runs.records import Run

_HELD_S = 600.0
"""No agent waits longer."""

_ENDS_S = 5.0
"""How long a node takes, beyond its workers' grace time, to wait for us after another has failed."""


class Fetching:
    """Fetches from each node once: as soon as its agent waits for that, else when the run has ended."""

    def __init__(self, patterns: Sequence[str], to: str, nodes: str) -> None:
        self._patterns, self._to, self._nodes = patterns, to, nodes
        self._transfer: fetch.Transfer | None = None
        self._ready_at: dict[int, float] = {}
        self._done: set[int] = set()
        self._settled = threading.Event()
        """A node that has failed ends only then: a cluster may end the whole run at once."""

        self.result: Fetched | None = None
        self.error: LaunchError | None = None

    def nodes(self, run: Run) -> Iterable[int]:
        """The nodes whose agents may wait."""
        return range(len(run.hosts)) if self._nodes == fetch.ALL else [int(self._nodes)]

    def ready(self, run: Run, rank: int, *, failed: bool) -> None:
        """Begin in the background with a node whose agent waits for that."""
        if self._nodes not in (fetch.ALL, str(rank)):
            return
        try:
            transfer = self._begun(run)
        except LaunchError as error:
            self.error = error
            return
        self._ready_at[rank] = time.monotonic()
        self._done.discard(rank)
        self._settled.clear()

        def until() -> None:
            self._done.add(rank)
            if failed:
                self._settled.wait(_HELD_S)

        output.progress_by(live_line.show)
        transfer.begin(rank, until)

    def look(self, run: Run, working: Callable[[], set[int]]) -> None:
        """Let nodes that have failed end, once the files of all are here. `working`: nodes whose workers still run."""
        if self._settled.is_set() or not self._ready_at or not self._done >= self._ready_at.keys():
            return
        late = time.monotonic() - max(self._ready_at.values()) > run.grace_s + _ENDS_S
        if late or self._nodes != fetch.ALL or not working() - self._ready_at.keys():
            self._settled.set()
            output.progress_by(None)
            live_line.withdraw()

    def finish(self, run: Run) -> None:
        """Wait for the end; sets `result` or `error`."""
        self._settled.set()
        with live_line.waiting(f"fetching from {run.id}"):
            try:
                self.result = self._begun(run).fetched()
            except LaunchError as error:
                self.error = error

    def give_up(self, run: Run) -> None:
        """Let the nodes' agents end without it, as far as they can be reached soon."""
        told = Question(lambda: fetch.release(run, self._nodes), "release")
        told.answered(_ENDS_S)
        self._settled.set()

    def _begun(self, run: Run) -> fetch.Transfer:
        if self._transfer is None:
            self._transfer = fetch.Transfer(run, self._patterns, fetch.target(run, self._to), self._nodes)
        return self._transfer
