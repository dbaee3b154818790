"""What `distlaunch top` shows: one run, read as it continues, or all runs that have not ended."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.errors import LaunchError
from launcher.runs import directories, status
from launcher.runs.live import Live
from launcher.runs.reader import StreamReader
from launcher.service import finding, listing, logs, observe, resume, watched
from launcher.service.selection import Selection
from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from launcher.backends._base import AnyBackend, Stream
    from launcher.results.top import Top, TopRun, Tops
    from launcher.runs.handle import Handle
    from launcher.runs.records import Run

_GOING = Selection(states=frozenset({"pending", "starting", "running", "stopping"}))
_READ_S = 0.5
_LOOK_S, _ASK_S = 1.0, 5.0
_CLOSE_S = 2.0
_AGAIN_S = 5.0
"""After an error, streams are opened again after this pause."""

_KNOWN_LINES = 50


class Watch:
    """One run while it is looked at. Threads read its streams and ask its backend: neither delays the screen."""

    def __init__(self, found: Run) -> None:
        """Read what is known of the run; `start` begins to read what is new."""
        self.run = found = logs.readable(found, follow=False)
        if found.result is None:
            self.run = found = observe.sent(found)
        self._live = Live(found)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._trouble = self._unread = ""
        self._next: Watch | None = None
        self._offsets, known = resume.known(found, None, _KNOWN_LINES, search=False)
        for node, records in known.items():
            self._live.add(node, records, None)

    @property
    def ended(self) -> bool:
        """Whether there is nothing to read: the run has ended, or was not submitted yet."""
        return self.run.result is not None or self.run.handle is None

    @property
    def trouble(self) -> str:
        """Why the streams cannot be read, or the backend cannot be asked; empty if both work."""
        return self._unread or self._trouble

    def now(self) -> Top:
        """The run as it is known by now."""
        with self._lock:
            found = self._live.top(time.monotonic())
        if self.ended and (state := status.current(self.run)) is not None:
            return {**found, "state": state["state"], "detail": state["detail"]}
        return found

    def tail(self, rank: int) -> bytes:
        """The latest output of a rank."""
        with self._lock:
            one = self._live.ranks.by_rank.get(rank)
            return one.tail if one else b""

    def ask(self) -> None:
        """Ask the backend once how the nodes are."""
        if self.ended or self.run.handle is None:
            return
        try:
            liveness = observe.backend_of(self.run).liveness(self.run.handle)
        except LaunchError as error:
            self._trouble = error.message
            return
        self._trouble = ""
        with self._lock:
            self._live.asked(liveness)

    def later(self) -> Watch:
        """The watch to go on with: another one, started, once the run was submitted, started again or moved."""
        if self._next is None:
            return self
        self._stop.set()
        self._next.start()
        return self._next

    def start(self) -> None:
        """Read what is new, until `close`; of a run that was not submitted yet, wait until there is something."""
        if self.run.result is not None:
            return
        tasks: tuple[Callable[[], None], ...] = (self._await,)
        if (handle := self.run.handle) is not None:
            backend = observe.backend_of(self.run)
            tasks = (lambda: self._read(backend, handle), self._ask)
        self._threads = [threading.Thread(target=listener.carried(task), daemon=True, name="top") for task in tasks]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop reading; a backend that does not answer is not waited for."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _await(self) -> None:
        pause = _ASK_S if self.run.race else _LOOK_S  # clusters are asked for a race without a launcher
        while not self._stop.wait(pause):
            try:
                found = finding.find(self.run.root, self.run.id)
                state = status.current(found)
                if state is None or state["state"] != "pending":
                    pause = _ASK_S  # a backend may be asked whether a launcher that was killed had submitted the run
                    started = Watch(found)
                    if started.run.handle is not None or started.run.result is not None:
                        self._next = started
                        return
                self._trouble = ""
            except LaunchError as error:
                self._trouble = error.message

    def _read(self, backend: AnyBackend, handle: Handle) -> None:
        readers = [StreamReader(None, node) for node in range(len(self.run.hosts))]
        while not self._stop.is_set():
            try:
                self._follow(backend.open_stream(handle, dict(self._offsets)), readers)
            except LaunchError as error:
                self._unread = error.message
                self._stop.wait(_AGAIN_S)

    def _follow(self, stream: Stream, readers: Sequence[StreamReader]) -> None:
        try:
            while not self._stop.is_set():
                chunks = stream.read(_READ_S)
                self._unread, now = "", time.monotonic()
                with self._lock:
                    for chunk in chunks:
                        if isinstance(chunk.node, int) and chunk.node < len(readers):
                            self._offsets[chunk.node] = self._offsets.get(chunk.node, 0) + len(chunk.data)
                            self._live.add(chunk.node, readers[chunk.node].feed(chunk.data), now)
        finally:
            stream.close()

    def _ask(self) -> None:
        while not self._stop.is_set():
            self.ask()
            with suppress(LaunchError):  # it is looked at again
                self._next = self._anew()
            if self._next is not None:
                return
            self._stop.wait(_ASK_S)

    def _anew(self) -> Watch | None:
        """The watch of the run's next attempt: on other hosts, with other objects, or on another cluster."""
        found = directories.again(self.run)
        if found.damaged or not found.submitted:
            return None
        return None if (found.attempt, found.path) == (self.run.attempt, self.run.path) else Watch(found)


def once(found: Run) -> Top:
    """The run as it is now, read once."""
    watch = Watch(found)
    if not watch.ended:
        with suppress(LaunchError):
            observe.backend_of(watch.run).refresh(watch.run.known)
            watch = Watch(watch.run)
        watch.ask()
    return watch.now()


def all_runs(directory: Path) -> Tops:
    """All runs that have not ended, the newest last."""
    found: Tops = {"runs": []}
    for run, state in listing.states(directory, selection=_GOING):
        one: TopRun = {
            "run": run.id,
            "state": state["state"],
            "nodes": listing.nodes(run, state),
            **watched.of(run, state),
            "created": run.created or None,
        }
        found["runs"].append(one)
    return found
