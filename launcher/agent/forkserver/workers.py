"""The workers of a node, as their parent sees them."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Set

from ..named_tuple import NamedTuple
from ..system import processes
from . import notes, streams
from .agent import Agent
from .child import Task
from .unkillable import Killed

if TYPE_CHECKING:
    from ..hang_messages import Stuck
    from ..messages import ExitedWorker, ServerGroup, Signal, StartedWorker, WorkerRequest

_ENDED: Stuck = {}
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SAME_SIGNAL_S, _LOOK_MS = 1.0, 100
"""How long the agent may take to pass on a signal that has ended a worker, too, and how often that is looked at."""


class Led(NamedTuple):
    """A worker that has exited before its process group."""

    code: int
    since: float


class Workers:
    """The workers that have not been reaped, so their pids are still theirs."""

    def __init__(
        self,
        agent: Agent,
        group: ServerGroup,
        become: Callable[[int, WorkerRequest, streams.Streams], Task],
        *,
        whole: bool,
    ) -> None:
        """`agent` and `group` get the reports.

        `become` is called in a new worker with its parent's pid, its request and its streams. `whole`: what ends a
        worker is for its process group, with which it ends, as a shell does not pass signals on to what it waits for.
        """
        self._agent, self._group, self._become, self._whole = agent, group, become, whole
        self._by_pid: Dict[int, StartedWorker] = {}
        self._marked: Set[int] = set()
        """Workers that count as ended by distlaunch when they exit."""

        self._led: Dict[int, Led] = {}
        """Workers that were to end and have, while others of their process groups still do."""

        self.killed = Killed()

    def pids(self) -> List[int]:
        """The pids of all workers."""
        return list(self._by_pid)

    def start(self, request: WorkerRequest, fds: Sequence[int] = ()) -> Optional[Task]:
        """Fork a worker; returns its task in the child, and None in the fork server. `fds`: only the worker's."""
        ends = streams.made(request["terminal"]) if "terminal" in request else streams.pipes()
        server = os.getpid()
        # A signal to the child waits until it has its own handlers back: with the fork server's it would be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, processes.PASSED_ON)
        pid = _forked(request["rank"])
        if pid == 0:
            ends.close(ends.agent)
            for name, fd in zip(request.get("passes", ()), fds):
                request["env"][name] = str(fd)
                os.set_inheritable(fd, True)
            task = self._become(server, request, ends)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return task
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ends.close(ends.worker)
        for fd in fds:
            os.close(fd)
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
        """Signal all workers, or one rank's process group; without `repeat`, those that are marked are left out."""
        number, rank = request["signal"], request.get("rank")
        mark, repeat = request.get("mark", True), request.get("repeat", True)
        for pid, about in list(self._by_pid.items()):
            if (not repeat and pid in self._marked) or rank not in (None, about["rank"]):
                continue
            if mark:
                self._marked.add(pid)
            if pid in self._led:
                self._signal_left(pid, number)
                continue
            if number == signal.SIGKILL:
                self.killed.sent(pid)
            if rank is None and not (mark and self._whole):
                os.kill(pid, number)
            else:
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:  # it has just been forked, and has no group of its own yet
                    os.kill(pid, number)

    def _signal_left(self, pid: int, number: int) -> None:
        """Signal the group of a worker that has exited, and report the worker unless the group still has to end."""
        left = _signal_group(pid, number)
        if not left or number == signal.SIGKILL:
            self._exited(pid, self._led.pop(pid).code)

    def ask_for_stacks(self, scratch: str) -> None:
        """Ask every worker for its stacks."""
        from ..stacks import dump  # few runs are asked

        for pid in self._by_pid:
            dump.ask(pid, scratch)

    def reaped(self, pid: int, code: int) -> None:
        """Report the exit of a process if it is a worker."""
        self.killed.reaped(pid)
        was_to_end = pid in self._marked and code != -signal.SIGKILL
        if self._whole and pid in self._by_pid and (was_to_end or -code in _STOPS):
            self._led[pid] = Led(code, time.monotonic())
        else:
            self._exited(pid, code)
        for each in list(self._led):
            self._signal_left(each, 0)

    def patience_ms(self) -> Optional[int]:
        """How soon `give_up` must be called again; None: it need not."""
        return _LOOK_MS if self._led else self.killed.patience_ms()

    def give_up(self) -> None:
        """Report workers that do not end after SIGKILL as if they had, and those that a signal of their own has ended.

        A scheduler may signal all processes at once: then the agent is about to stop the workers.
        """
        for pid, led in list(self._led.items()):
            if pid not in self._marked and time.monotonic() > led.since + _SAME_SIGNAL_S:
                self._exited(pid, self._led.pop(pid).code)
            else:
                self._signal_left(pid, 0)
        for pid, words in self.killed.given_up():
            self._exited(pid, -signal.SIGKILL, {"stuck": words})

    def _exited(self, pid: int, code: int, more: Stuck = _ENDED) -> None:
        about = self._by_pid.pop(pid, None)
        if about is None:
            return
        ended: ExitedWorker = {**about, "code": code, "stopped": pid in self._marked, "time": time.time(), **more}
        self._marked.discard(pid)
        self._agent.channel.send({"exited": ended})
        self._group.send({"exited": ended})

    def hear_of_debugger(self, scratch: str) -> None:
        """Report a worker that has failed and stays in a debugger until it exits."""
        for pid, about in self._by_pid.items():
            message = notes.take(scratch, notes.DEBUGGER, pid)
            if message is not None:
                fields = {"rank": about["rank"], "pid": pid, "message": message}
                self._group.send({"debugged": fields})
                self._agent.event("debugger", **fields)


def _forked(rank: int) -> int:
    """Fork the worker of this rank, as `os.fork` does."""
    try:
        return os.fork()
    except OSError as error:
        few = "no more processes may be started (pids.max, ulimit -u)"
        why = few if error.errno == errno.EAGAIN else error.strerror
        raise OSError(error.errno, f"the worker of rank {rank} cannot be forked: {why}") from error


def _signal_group(pid: int, number: int) -> bool:
    """Signal a process group; whether it has members that we may signal."""
    try:
        os.killpg(pid, number)
    except OSError:
        return False
    return True
