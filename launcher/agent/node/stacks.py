"""Takes the stacks of this node's workers when somebody asks: a user, the watchdog, a collective that timed out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence

from ..stream.writer import Writer
from ..system import threads
from .children import ServerProcess
from .flight import Dumps
from .place import Place
from .workers import Workers

if TYPE_CHECKING:
    from ..stacks.collection import Asked
    from ..stacks.stack import Stack

    Taken = Callable[[List[Stack]], None]
    """Gets the groups of stacks."""

_LOOK_S = 0.02


class Stacks:
    """At most one collection at a time, in a thread of its own; who asks meanwhile gets the next one."""

    def __init__(self, place: Place, out: Writer, server: ServerProcess, workers: Workers) -> None:
        self.dumps = Dumps(place, out, workers)
        """Those of flight recorders."""

        self._scratch, self._out, self._server, self._workers = place.scratch.path, out, server, workers
        self._next: List[Taken] = []
        self._now: List[Taken] = []
        self._thread: Optional[threading.Thread] = None
        self._found: List[List[Stack]] = []

    def report(self) -> None:
        """Take the stacks, and write them to the stream."""
        self.take(lambda groups: self._out.event("stacks", groups=groups))

    def take(self, taken: Taken) -> None:
        """Take the stacks, and give them to `taken` in a later turn of the loop."""
        self._next.append(taken)
        if self._thread is None:
            self._begin()

    def attend(self) -> None:
        """Call this once per turn of the loop."""
        self.dumps.attend()
        if self._thread is None or self._thread.is_alive():
            return
        self._thread, given, self._now = None, self._now, []
        groups = self._found.pop() if self._found else []
        for taken in given:
            taken(groups)
        if self._next:
            self._begin()

    def patience(self) -> float:
        """Seconds until `attend` must be called again."""
        return min(float("inf") if self._thread is None else _LOOK_S, self.dumps.patience())

    def _begin(self) -> None:
        from ..stacks import collection  # few runs are asked

        self._now, self._next = self._next, []
        pids = {worker.about["rank"]: worker.about["pid"] for worker in self._workers.running()}
        asked = collection.about_to_ask(pids, self._scratch)
        self._server.ask_for_stacks()
        self._thread = threading.Thread(target=self._collect, args=(asked,), daemon=True, name="stacks")
        if not threads.started(self._thread):
            self._out.event("warning", message="the stacks cannot be read: no thread can be started")

    def _collect(self, asked: Sequence[Asked]) -> None:
        from ..stacks import collection

        try:
            self._found.append(collection.collect(asked))
        except Exception as error:  # noqa: BLE001 - the run must not end because it cannot be looked at
            self._out.event("warning", message=f"the stacks cannot be read: {threads.trace_of(error)[-500:]}")
