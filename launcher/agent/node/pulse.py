"""What an agent writes at intervals: heartbeats, and samples of what the node uses and its ranks tell."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..ranks import progress_file
from ..stream.writer import Writer
from ..system import threads
from .analysis import FailureAnalysis
from .children import ServerProcess
from .loop import Loop
from .place import Place
from .workers import Worker, Workers

if TYPE_CHECKING:
    from ..samples.sampler import Rank, Sampler

_FOR_PEOPLE = 3
"""In a log that people read, there is one sample where there would be this many."""

_LAST_S = 1.0


class Pulse:
    """One agent's heartbeats and samples. A thread takes the samples: a driver may take seconds to answer, or hang."""

    def __init__(
        self,
        place: Place,
        out: Writer,
        loop: Loop,
        *,
        server: ServerProcess,
        workers: Workers,
        analysis: FailureAnalysis,
    ) -> None:
        self._place, self._out, self._loop, self._server, self._workers = place, out, loop, server, workers
        self._analysis = analysis
        now = time.monotonic()
        job = place.job
        self._heartbeat_at = now + job.heartbeat_s
        self._every_s = (job.samples_s or float("inf")) * (_FOR_PEOPLE if job.plain_stream else 1)
        self._sample_at = now + self._every_s
        self._sampler: Optional[Sampler] = None
        self._thread: Optional[threading.Thread] = None
        self._ready: List[Dict[str, Any]] = []
        """At most one sample that is to be written, and warnings."""

    def patience(self, now: float) -> float:
        """Seconds until `beat` must be called again."""
        return min(self._heartbeat_at, self._sample_at) - now

    def beat(self, now: float, hang: Optional[Dict[str, Any]]) -> None:
        """Write what is due. `hang`: the one that was reported, and empty once it is over."""
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._place.job.heartbeat_s
            self._out.heartbeat(len(self._workers.running()), **self._workers.met)
            self._place.project.note()
            self._analysis.look()
        while self._ready:
            fields = self._ready.pop()
            self._write({**fields, "hang": hang or None} if hang is not None and fields.get("whole") else fields)
        if now >= self._sample_at:
            self._sample_at = now + self._every_s
            ranks = self._ranks()
            if ranks and (self._thread is None or not self._thread.is_alive()):
                thread = threading.Thread(target=self._take, args=(ranks,), daemon=True, name="samples")
                self._thread = thread if threads.started(thread) else None

    def finish(self) -> None:
        """Write the last sample, if ranks have told their progress, or there were samples."""
        if self._thread is not None:
            self._thread.join(_LAST_S)
            if self._thread.is_alive():
                return
        while self._ready:
            self._write(self._ready.pop())
        if self._every_s < float("inf") and any(map(self._has_told, self._workers.of_this_round())):
            self._write(self._made().last(self._ranks()))

    def _write(self, fields: Dict[str, Any]) -> None:
        if "message" in fields:
            self._out.event("warning", **fields)
        else:
            self._out.event("sample", **fields)

    def _has_told(self, worker: Worker) -> bool:
        name = progress_file(worker.about["round"], worker.about["local_rank"])
        return (
            self._sampler is not None
            or any(pipe.traces.mark for pipe in worker.output.values())
            or os.path.exists(os.path.join(self._place.scratch.path, name))
        )

    def _ranks(self) -> List[Rank]:
        from ..samples.sampler import Rank  # a run that is shorter than the interval needs none of it

        found = []
        for worker in self._workers.of_this_round():
            about, pipes = worker.about, worker.output.values()
            rank = Rank(
                about["rank"], about["local_rank"], about["round"], about["pid"],
                runs=worker.exited is None,
                lines=sum(pipe.lines for pipe in pipes),
                marks=[pipe.traces.mark for pipe in pipes if pipe.traces.mark],
                latest=[pipe.traces.latest for pipe in pipes],
            )  # fmt: skip
            found.append(rank)
        return found

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _take(self, ranks: List[Rank]) -> None:
        try:
            sampler = self._made()
            self._ready.append(sampler.sample(ranks))
            self._ready += [{"message": trouble} for trouble in sampler.troubles()]
        except Exception as error:  # noqa: BLE001 - a run must not end because it cannot be watched
            self._every_s = self._sample_at = float("inf")
            self._ready.append({"message": f"no more samples of this node: {type(error).__name__}: {error}"})
        self._loop.wake()

    def _made(self) -> Sampler:
        from ..samples.sampler import Sampler

        if self._sampler is None:
            env = self._place.job.environment(dict(os.environ), self._place.node_rank)
            self._sampler = Sampler(env, self._server.cgroup, self._place.scratch.path)
        return self._sampler
