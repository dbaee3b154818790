"""Why a node's part of the run failed: out of what its workers, the worker group's process and the other nodes have said."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple

from .. import cause
from ..failures import Failure
from ..system import facts
from .place import Place
from .workers import Worker

if TYPE_CHECKING:
    from ..messages import Result


class FailureAnalysis:
    """Finds causes on one node."""

    def __init__(self, place: Place) -> None:
        self._host, self._node = place.host, place.node_rank
        self._kept, self._scratch = place.directory, place.scratch.path
        """Where error files are kept, and where workers write them."""

        self._oom_kills = facts.oom_kills()

    def out_of_memory(self) -> int:
        """Processes that the kernel has killed for want of memory since the agent started."""
        return facts.oom_kills() - self._oom_kills

    def of_node(self, message: str, kind: Failure = Failure.NODE, **more: Any) -> cause.Cause:
        """A cause for which no worker is to blame."""
        if more.get("traceback"):
            more["traceback"] = cause.shorten(more["traceback"], whole=f"the agent's stderr on node {self._node}")
        message = cause.one_line(message)
        return {**cause.of_node(host=self._host, node=self._node, message=message, kind=kind, time=time.time()), **more}

    def of_part(self, what: str, code: int) -> Tuple[str, Failure]:
        """Message and class for a process of ours that has ended with this exit code, or by this signal, below 0."""
        if code >= 0:
            return f"{what} ended with exit code {code}", Failure.NODE
        return cause.killed(what, cause.signal_name(-code), self.out_of_memory())

    def of_workers(self, workers: Iterable[Worker]) -> List[cause.Cause]:
        """The failures among the workers of the present round; their pipes are to be drained before."""
        causes: List[cause.Cause] = []
        kills = self.out_of_memory()
        for worker in workers:
            about = worker.exited
            name = os.path.join("errors", f"{worker.about['round']}-{worker.about['local_rank']}.json")
            errors, kept = os.path.join(self._scratch, name), os.path.join(self._kept, name)
            if os.path.exists(errors):  # it has raised, even if its exit hooks still run or we have ended it since
                about = about or {**worker.about, "code": 1, "stopped": False, "time": time.time()}
            elif about is None or about["code"] == 0 or about["stopped"]:
                continue
            pipe = worker.output.get("stderr")  # none where it is the launcher's very terminal
            said = pipe.tail.text if pipe and pipe.tail else b""
            found = cause.of_worker(
                host=self._host, node=self._node, about=about, error_file=errors, stderr_tail=said, oom_kills=kills, kept=kept
            )
            causes.append(found)
        return causes

    def of_result(self, result: Result, own: Optional[cause.Cause]) -> Tuple[str, Optional[cause.Cause]]:
        """The verdict on what the process of the worker group has said last; `own` is the first cause among our workers."""
        if result["result"] == "success":
            return "success", None
        if "word" in result:  # another node ended the run
            word = result["word"]
            text = word.get("message") or f"node {word['node']} ended the run"
            # With its time: what our workers raised after that is a consequence.
            about = {name: word[name] for name in ("time", "secondary") if name in word}
            told = word.get("cause") or self.of_node(text, node=word["node"], host=word.get("host"), **about)
            return "failed", cause.first([told, own]) if own else told
        if "error" in result:
            more: Dict[str, Any] = {name: value for name, value in result.items() if name in ("secondary", "time", "traceback")}
            return "failed", self.of_node(result["error"], Failure(result.get("kind", Failure.NODE)), **more)
        return "failed", own or self.of_node("a worker ended, and left no trace of why")

    def of_stop(self, reason: str, time_limit_s: Optional[float]) -> cause.Cause:
        """The cause of a run that was stopped."""
        limit = f" of {time_limit_s:.0f} s" if time_limit_s else ""
        texts = {
            Failure.TIMEOUT: f"the time limit{limit} was reached",
            Failure.PREEMPTED: "the node was taken back",
            Failure.CANCELLED: "the run was cancelled",
        }
        return self.of_node(texts[Failure(reason)], Failure(reason))
