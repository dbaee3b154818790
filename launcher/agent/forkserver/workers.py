"""The workers of a node, as their parent knows them."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Set

from ..system import processes
from . import notes, streams
from .agent import Agent
from .child import Task

if TYPE_CHECKING:
    from ..messages import ExitedWorker, ServerGroup, Signal, StartedWorker, WorkerRequest


class Workers:
    """Those that were started and have not been reaped: a pid in here is theirs."""

    def __init__(
        self,
        agent: Agent,
        group: ServerGroup,
        become: Callable[[int, WorkerRequest, streams.Streams], Task],
    ) -> None:
        """Both are told what happens. `become` is called in a new worker, with its parent's pid and what was asked for."""
        self._agent, self._group, self._become = agent, group, become
        self._by_pid: Dict[int, StartedWorker] = {}
        self._marked: Set[int] = set()
        """Those that end now were ended by us."""

    def pids(self) -> List[int]:
        """Of all of them."""
        return list(self._by_pid)

    def start(self, request: WorkerRequest) -> Optional[Task]:
        """Fork one; in the child, what that is to do."""
        ends = streams.made(request["terminal"]) if "terminal" in request else streams.pipes()
        server = os.getpid()
        # A signal that reaches the child before it has its own handlers back waits for them: with ours it would be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, processes.PASSED_ON)
        pid = os.fork()
        if pid == 0:
            ends.close(ends.agent)
            task = self._become(server, request, ends)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return task
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ends.close(ends.worker)
        rank, local_rank, number = request["rank"], request["local_rank"], request["round"]
        about: StartedWorker = {"rank": rank, "local_rank": local_rank, "round": number, "pid": pid}
        if "cpus" in request:
            about["cpus"] = request["cpus"]
        self._by_pid[pid] = about
        self._agent.channel.send({"started": self._by_pid[pid], "terminal": request.get("terminal")}, ends.agent)
        self._group.send({"started": self._by_pid[pid]})
        ends.close(ends.agent)
        return None

    def signal(self, request: Signal) -> None:
        """To all workers, or to one rank with the processes of its group; without `repeat` not to those that are marked."""
        number, rank = request["signal"], request.get("rank")
        mark, repeat = request.get("mark", True), request.get("repeat", True)
        for pid, about in self._by_pid.items():
            if not repeat and pid in self._marked:
                continue
            if mark:
                self._marked.add(pid)
            if rank is None:
                os.kill(pid, number)
            elif about["rank"] == rank:
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:  # it has just been forked, and has no group of its own yet
                    os.kill(pid, number)

    def reaped(self, pid: int, code: int) -> None:
        """A process has ended, which may be one of them."""
        about = self._by_pid.pop(pid, None)
        if about is None:
            return
        ended: ExitedWorker = {**about, "code": code, "stopped": pid in self._marked, "time": time.time()}
        self._marked.discard(pid)
        self._agent.channel.send({"exited": ended})
        self._group.send({"exited": ended})

    def hear_of_debugger(self, scratch: str) -> None:
        """One that has failed is kept in a debugger, which its end alone ends."""
        for pid, about in self._by_pid.items():
            message = notes.take(scratch, notes.DEBUGGER, pid)
            if message is not None:
                fields = {"rank": about["rank"], "pid": pid, "message": message}
                self._group.send({"debugged": fields})
                self._agent.event("debugger", **fields)
