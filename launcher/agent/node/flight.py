"""Has this node's ranks write what their flight recorders have, and reads it, in a thread: the disk may be slow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..stream.writer import Writer
from ..system import threads
from .place import Place
from .workers import Workers

if TYPE_CHECKING:
    from ..flight.recorder import Recorder

READS_S = 5.0
_LOOK_S = 0.05
_MAX_TEXT = 1000


class Dumps:
    """The dumps of one round, read at most once at a time."""

    def __init__(self, place: Place, out: Writer, workers: Workers) -> None:
        self._host, self._out, self._workers = place.host, out, workers
        self._thread: Optional[threading.Thread] = None
        self._found: Optional[Dict[str, Any]] = None
        self._taken: List[Callable[[Optional[Dict[str, Any]]], None]] = []

    def take(self, about: Optional[Dict[str, Any]], taken: Callable[[Optional[Dict[str, Any]]], None]) -> None:
        """Give `taken` the dumps in a later turn of the loop; at once None if there is no recorder."""
        if about is None:
            taken(None)
            return
        from ..flight.recorder import Recorder  # few runs are asked

        self._taken.append(taken)
        if self._thread is None:
            recorder = Recorder(**about)
            alive, every = (
                [worker.about["rank"] - recorder.first_rank for worker in workers]
                for workers in (self._workers.running(), self._workers.of_this_round())
            )
            self._found = None
            self._thread = threading.Thread(target=self._read, args=(recorder, alive, every), daemon=True, name="dumps")
            if not threads.started(self._thread):
                self._out.event("warning", message="the dumps cannot be read: no thread can be started")

    def attend(self) -> None:
        """Call this once per turn of the loop."""
        if self._thread is None or self._thread.is_alive():
            return
        self._thread, given, self._taken = None, self._taken, []
        for taken in given:
            taken(self._found)

    def patience(self) -> float:
        """Seconds until `attend` must be called again."""
        return float("inf") if self._thread is None else _LOOK_S

    def _read(self, recorder: Recorder, alive: List[int], every: List[int]) -> None:
        try:
            self._found = self._of(recorder, alive, every)
        except Exception as error:  # noqa: BLE001 - the run must not end because it cannot be looked at
            self._out.event("warning", message=f"the dumps cannot be read: {threads.trace_of(error)[-500:]}")

    def _of(self, recorder: Recorder, alive: List[int], every: List[int]) -> Dict[str, Any]:
        """This node's answer: its dumps, where they are, and what is wrong with them."""
        from ..flight import program
        from ..flight.recorder import have_written, written

        have_written(recorder, alive)
        paths = written(recorder, every)
        answer = {"role": recorder.role, "files": "", "problem": "", "dumps": ""}
        if not paths:
            return answer
        answer["files"] = f"{self._host}:{recorder.prefix}*"
        request = {"do": program.READ, "paths": {str(rank): path for rank, path in paths.items()}}
        try:
            read = program.ask(request, READS_S)
        except program.FailedError as error:
            return {**answer, "problem": f"{answer['files']}: {error}"}
        wrong = [f"{paths[int(rank)]}: {why}" for rank, why in read["unreadable"].items()]
        return {**answer, "dumps": read["dumps"], "problem": "; ".join(wrong)[:_MAX_TEXT]}
