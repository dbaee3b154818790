"""Why a node's part of the run failed, from the reports of its workers, its worker group's process and other nodes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Iterable, List, Optional, Tuple

from .. import cause, contracts
from ..failures import Failure
from ..system import facts
from .place import Place
from .workers import Worker

if TYPE_CHECKING:
    from ..messages import Cause, Result


_OF_LOST_PEER = "exited with code 14"
"""How a rank of Open MPI ends that lost another one. Its mpirun reports that on node 0; the rank itself does not."""


class FailureAnalysis:
    """Finds the causes of failures on one node."""

    def __init__(self, place: Place) -> None:
        self._host, self._node = place.host, place.node_rank
        self._kept, self._scratch = place.directory, place.scratch.path
        """Where error files are kept, and where workers write them."""

        self._mpi = contracts.load(place.job.contract).mpi
        self._oom_kills = self._latest_oom_kills = facts.oom_kills()

    def begin_round(self) -> None:
        """What the kernel's out-of-memory killer has killed before concerns no worker of this round.

        What looks at failed workers is imported now, in no start's way: later there may be no descriptor left for it.
        """
        from ..forkserver import notes  # noqa: F401

        self._oom_kills = self._latest_oom_kills = facts.oom_kills()

    def look(self) -> None:
        """Call this at intervals, so that what was killed long ago does not count."""
        self._oom_kills, self._latest_oom_kills = self._latest_oom_kills, facts.oom_kills()

    def out_of_memory(self) -> int:
        """How many processes the kernel's out-of-memory killer has killed lately."""
        return facts.oom_kills() - self._oom_kills

    def of_node(self, message: str, kind: Failure = Failure.NODE, traceback: Optional[str] = None) -> Cause:
        """A cause on this node for which no worker is responsible."""
        message = cause.one_line(message)
        found = cause.of_node(host=self._host, node=self._node, message=message, kind=kind, time=time.time())
        if traceback:
            found["traceback"] = cause.shorten(traceback, whole=f"the agent's stderr on node {self._node}")
        return found

    def of_part(self, what: str, code: int) -> Tuple[str, Failure]:
        """Message and class for a process of distlaunch that exited with this code, or by this signal if negative."""
        if code >= 0:
            return f"{what} ended with exit code {code}", Failure.NODE
        return cause.killed(what, cause.signal_name(-code), self.out_of_memory())

    def of_workers(self, workers: Iterable[Worker]) -> List[Cause]:
        """The failures among these workers; their pipes must have been drained."""
        from ..forkserver import notes  # by `begin_round`

        causes: List[Cause] = []
        kills = self.out_of_memory()
        for worker in workers:
            about = worker.exited
            name = os.path.join("errors", f"{worker.about['round']}-{worker.about['local_rank']}.json")
            errors, kept = os.path.join(self._scratch, name), os.path.join(self._kept, name)
            pipe = worker.output.get("stderr")  # none if it is the launcher's own terminal
            ended_at = about["time"] if about else time.time()
            left = notes.read(self._scratch, notes.EXIT, worker.about["pid"]) or {}
            said = pipe.tail.text(ended_at, left.get("at"), left.get("handles", ())) if pipe and pipe.tail else b""
            if os.path.exists(errors):  # it raised, even if its exit hooks still run
                about = about or {**worker.about, "code": 1, "stopped": False, "time": time.time()}
                if about["stopped"]:  # by distlaunch, in its exit hooks: that signal is not the cause
                    about = {**about, "code": 1}
            elif about and about["code"] and cause.aborted_mpi(said):  # its exit code is MPICH's, or a signal
                about = {**about, "code": cause.aborted_mpi(said)}
            elif about is None or about["code"] == 0 or about["stopped"]:
                continue
            found = cause.of_worker(
                host=self._host,
                node=self._node,
                about=about,
                error_file=errors,
                stderr_tail=said,
                oom_kills=kills,
                kept=kept,
            )
            if self._mpi and found["message"] == _OF_LOST_PEER:
                found["secondary"] = True
            causes.append(found)
        return causes

    def of_result(self, result: Result, own: Optional[Cause]) -> Tuple[str, Optional[Cause]]:
        """The verdict on the group process's last message; `own` is the first cause among this node's workers."""
        if result["result"] == "success":
            return "success", None
        if "word" in result:  # another node ended the run
            word = result["word"]
            text = word.get("message") or f"node {word['node']} ended the run"
            told = word.get("cause")
            if told is None:
                told = self.of_node(text)
                told["node"], told["host"] = word["node"], word.get("host")
                # What this node's workers raised after that time is a consequence.
                told["time"], told["secondary"] = word.get("time", told["time"]), word.get("secondary", False)
            return "failed", cause.first([told, own]) if own else told
        if "error" in result:
            kind = Failure(result.get("kind", Failure.NODE))
            found = self.of_node(result["error"], kind, result.get("traceback"))
            found["secondary"], found["time"] = result.get("secondary", False), result.get("time", found["time"])
            return "failed", found
        return "failed", own or self.of_node("a worker exited without a trace of the cause")

    def of_stop(self, reason: str, time_limit_s: Optional[float]) -> Cause:
        """The cause of a run that was stopped."""
        limit = f" of {time_limit_s:.0f} s" if time_limit_s else ""
        texts = {
            Failure.TIMEOUT: f"the time limit{limit} was reached",
            Failure.PREEMPTED: "the node was taken back",
            Failure.CANCELLED: "the run was cancelled",
        }
        return self.of_node(texts[Failure(reason)], Failure(reason))
