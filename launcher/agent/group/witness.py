"""Reports a killed agent: the worker group's process outlives it briefly, and informs the stream and the peers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Optional

from .. import cause
from ..failures import Failure
from ..job import Job
from ..network.endpoint import Endpoint
from ..protocol import encode_event
from ..stream.sizes import RESERVED_BYTES
from ..system import facts, files, processes
from ..system.scratch import CRASH, within

if TYPE_CHECKING:
    from ..messages import Cause, ServerSetup

_FAULTS = {
    "segmentation fault": signal.SIGSEGV,
    "aborted": signal.SIGABRT,
    "bus error": signal.SIGBUS,
    "illegal instruction": signal.SIGILL,
    "floating point exception": signal.SIGFPE,
}
_ENDS_S = 1.0
_SAY_S = 3.0
"""Limit for each part of the report: a store that does not answer must not delay the exit."""


class Witness:
    """Collects what a report on this node's agent needs, while the agent is running."""

    def __init__(self, job: Job, setup: ServerSetup) -> None:
        self.nodes: Any = None
        """This node's `Nodes`, once it has joined."""

        self._job, self._node, self._host, self._directory = job, setup["node_rank"], setup["host"], setup["directory"]
        self._agent, self._scratch = setup["agent"], setup["scratch"]
        self._oom_kills = facts.oom_kills()

    def agent_is_gone(self, by_itself: bool) -> None:
        """Report that the agent exited first: it was killed, crashed, or announced its exit (`by_itself`)."""
        why = self._cause(by_itself)
        within(_SAY_S, lambda: self._keep("failure", why), None)
        # Once this process has exited and its connection is closed, the other nodes of an elastic run continue.
        if self._job.elastic and self._node > 0:
            return
        within(_SAY_S, lambda: Endpoint(self._job).end(why), None)
        if self.nodes is not None:
            within(_SAY_S, lambda: self._tell_peers(why), None)

    def _tell_peers(self, why: Cause) -> None:
        with contextlib.suppress(RuntimeError):
            if self.nodes.publish_loss(why):  # else node 0 is to notice that this node's connection closes
                self.nodes.shutdown_barrier(reported=True, succeeded=False)

    def _cause(self, by_itself: bool) -> Cause:
        status, crash = _how_it_ended(self._agent), _text(os.path.join(self._scratch, CRASH))
        if by_itself or (status is not None and not os.WIFSIGNALED(status)):
            code = "" if status is None else f", exit code {os.WEXITSTATUS(status)}"
            message = f"the agent (pid {self._agent}) exited without reporting a result{code}"
            return cause.of_node(host=self._host, node=self._node, message=message, time=time.time())
        # Its parent may have reaped it already. Without a crash file, it was then SIGKILL, which leaves no trace.
        number = os.WTERMSIG(status) if status is not None else _signal_of(crash) or signal.SIGKILL
        name = signal.Signals(number).name
        by_kernel = number == signal.SIGKILL and facts.oom_kills() > self._oom_kills
        who = ", sent by the kernel's out-of-memory killer" if by_kernel else ""
        message = f"the agent (pid {self._agent}) was killed by {name}{who}"
        kind = Failure.OUT_OF_MEMORY if by_kernel else Failure.KILLED
        about = cause.of_node(host=self._host, node=self._node, message=message, kind=kind, time=time.time())
        return {**about, "signal": name, "traceback": crash or None}

    def _keep(self, event: str, why: Cause) -> None:
        """Write the event to the stream or, on a full disk, to the space reserved for last words."""
        attempt = {"attempt": self._job.attempt} if self._job.attempt else {}
        line = encode_event(event, self._node, **attempt, cause=why)
        try:
            self._write(line)
        except OSError:
            with contextlib.suppress(OSError), open(os.path.join(self._directory, "last_words"), "r+b") as file:
                file.write(line.ljust(RESERVED_BYTES - 1) + b"\n")

    def _write(self, line: bytes) -> None:
        """Append the event to the stream if that is a file; the agent may have been killed in the middle of a line."""
        with open(os.path.join(self._directory, "stream"), "r+b", buffering=0) as file:
            file.write(b"\n" + line if files.ends_within_a_line(file) else line)


def _how_it_ended(pid: int) -> Optional[int]:
    """The wait status of an exiting process that is not our child; None if its parent has already reaped it."""
    limit = time.monotonic() + _ENDS_S
    with contextlib.suppress(OSError, ValueError, IndexError):
        while True:
            late = time.monotonic() >= limit  # this process may have been stalled: look once more
            fields = processes.stat(pid)
            status = int(fields[49])  # exit_code
            if status or fields[0] in (b"Z", b"X"):
                return status
            if late:
                break
            time.sleep(0.005)  # its channels close shortly before its status is set
    return None


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return files.read_word(path).decode(errors="replace")
    return ""


def _signal_of(crash: str) -> int:
    """The signal named in faulthandler's output; 0 if there is none."""
    said = crash.partition("\n")[0].lower().replace("-", " ")
    return next((number for words, number in _FAULTS.items() if words in said), 0)
