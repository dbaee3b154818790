"""This node's workers, as the fork server reports them."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Collection, Dict, List, Optional

from .. import cause
from ..stream.output import Pipe
from ..stream.writer import Writer
from .output import Output

if TYPE_CHECKING:
    from ..messages import ExitedWorker, LentTerminal, StartedWorker


class Worker:
    """A worker that is running or has run."""

    def __init__(self, about: StartedWorker, output: Dict[str, Pipe]) -> None:
        self.about = about
        self.output = output
        self.exited: Optional[ExitedWorker] = None


class Workers:
    """By pid: the workers of the current round, and those of the previous round that have not exited."""

    def __init__(self, out: Writer, output: Output) -> None:
        self.output = output
        self.round = -1
        self.met: Dict[str, object] = {}
        """What heartbeats repeat of the latest rendezvous, for those who only read the end of the stream."""

        self.stuck: List[int] = []
        """The pids of those that are left behind, as no signal ends them."""

        self._out = out
        self._by_pid: Dict[int, Worker] = {}

    def __bool__(self) -> bool:
        """Whether any have started."""
        return bool(self._by_pid)

    def running(self) -> List[Worker]:
        """Workers that have not exited."""
        return [worker for worker in self._by_pid.values() if worker.exited is None]

    def of_this_round(self) -> List[Worker]:
        """Workers of the current round, including those that have exited."""
        return [worker for worker in self._by_pid.values() if worker.about["round"] == self.round]

    def begin_round(self, number: int) -> None:
        """Start a round, once all nodes have met."""
        self.round = number
        # Reports of the last exits in the previous round may still be on their way.
        kept = [*self.running(), *self.of_this_round()]
        self._by_pid = {worker.about["pid"]: worker for worker in kept}

    def started(self, about: StartedWorker, fds: List[int], lent: Optional[LentTerminal]) -> None:
        """Add a worker. `fds`: the ends of its output; `lent`: its share of the launcher's terminal or stdin."""
        self._by_pid[about["pid"]] = Worker(about, self.output.open(about, fds, lent))
        self._out.event("worker_started", **about)

    def exited(self, about: ExitedWorker) -> None:
        """Record the exit that the fork server reported."""
        worker = self._by_pid[about["pid"]]
        worker.exited = about
        self.output.close(about["pid"], worker.output)
        code = about["code"]
        how = {"signal": cause.signal_name(-code)} if code < 0 else {"exit_code": code}
        fields = {key: about[key] for key in ("rank", "local_rank", "pid", "round", "stopped")}
        self._out.event("worker_exited", **fields, **how)
        if "stuck" in about:
            self.stuck.append(about["pid"])
            who = f"rank {about['rank']} (pid {about['pid']})"
            self._out.event("warning", message=f"{who} has survived SIGKILL, and is left behind: {about['stuck']}")

    def killed(self) -> None:
        """Record that the kernel killed all workers when the fork server exited."""
        for worker in self.running():
            worker.exited = {**worker.about, "code": -int(signal.SIGKILL), "stopped": True, "time": time.time()}

    def all_succeeded(self) -> bool:
        """Whether this round has workers and all have succeeded."""
        ended = [worker.exited for worker in self.of_this_round()]
        return bool(ended) and all(about and about["code"] == 0 for about in ended)

    def any_ended_by(self, signals: Collection[int]) -> bool:
        """Whether one of these signals, not sent by distlaunch, ended a worker of this round."""
        ended = [worker.exited for worker in self.of_this_round() if worker.exited is not None]
        return any(-about["code"] in signals and not about["stopped"] for about in ended)
