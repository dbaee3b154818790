"""The report about an agent that was killed: what is left of its node for a moment tells its stream and its peers."""

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
from ..stream.sink import RESERVED_BYTES
from ..system import facts, files, processes
from ..system.scratch import CRASH, within

if TYPE_CHECKING:
    from ..messages import ServerSetup

_FAULTS = {
    "segmentation fault": signal.SIGSEGV,
    "aborted": signal.SIGABRT,
    "bus error": signal.SIGBUS,
    "illegal instruction": signal.SIGILL,
    "floating point exception": signal.SIGFPE,
}
_ENDS_S = 1.0
_SAY_S = 3.0
"""So long at most, until the others have heard it; a store that does not answer keeps nobody from ending."""


class Witness:
    """Knows what there is to say of this node's agent while it lives."""

    def __init__(self, job: Job, setup: ServerSetup) -> None:
        self.nodes: Any = None
        """Once there is one."""

        self._job, self._node, self._host, self._directory = job, setup["node_rank"], setup["host"], setup["directory"]
        self._agent, self._scratch = setup["agent"], setup["scratch"]
        self._oom_kills = facts.oom_kills()

    def agent_is_gone(self, by_itself: bool) -> None:
        """It has ended without ending this process: it was killed, or has crashed, or says that it ends `by_itself`."""
        why = self._cause(by_itself)
        within(_SAY_S, lambda: self._keep("failure", why), None)
        if self._job.elastic and self._node > 0:  # the others go on without it, once its connection ends with this process
            return
        within(_SAY_S, lambda: Endpoint(self._job).end(why), None)
        if self.nodes is not None:
            within(_SAY_S, lambda: self._tell_peers(why), None)

    def _tell_peers(self, why: cause.Cause) -> None:
        with contextlib.suppress(RuntimeError):
            self.nodes.say_lost(why)
            self.nodes.farewell(told=True, well=False)

    def _cause(self, by_itself: bool) -> cause.Cause:
        status, crash = _how_it_ended(self._agent), _text(os.path.join(self._scratch, CRASH))
        if by_itself or (status is not None and not os.WIFSIGNALED(status)):
            code = "" if status is None else f", exit code {os.WEXITSTATUS(status)}"
            message = f"the agent (pid {self._agent}) exited without reporting a result{code}"
            return cause.of_node(host=self._host, node=self._node, message=message, time=time.time())
        # Its parent may have waited for it already. Then it is no signal but this one that leaves nothing behind.
        number = os.WTERMSIG(status) if status is not None else _signal_of(crash) or signal.SIGKILL
        name = signal.Signals(number).name
        by_kernel = number == signal.SIGKILL and facts.oom_kills() > self._oom_kills
        who = ", sent by the kernel's out-of-memory killer" if by_kernel else ""
        message = f"the agent (pid {self._agent}) was killed by {name}{who}"
        kind = Failure.OUT_OF_MEMORY if by_kernel else Failure.KILLED
        about = cause.of_node(host=self._host, node=self._node, message=message, kind=kind, time=time.time())
        return {**about, "signal": name, "traceback": crash or None}

    def _keep(self, event: str, why: cause.Cause) -> None:
        """Where a reader finds it: in the stream, or on a full disk in the room for last words."""
        attempt = {"attempt": self._job.attempt} if self._job.attempt else {}
        line = encode_event(event, self._node, **attempt, cause=why)
        try:
            self._write(line)
        except OSError:
            with contextlib.suppress(OSError), open(os.path.join(self._directory, "last_words"), "r+b") as file:
                file.write(line.ljust(RESERVED_BYTES - 1) + b"\n")

    def _write(self, line: bytes) -> None:
        """Add the event to the stream, where that is a file; the agent may have been killed in the middle of a line."""
        with open(os.path.join(self._directory, "stream"), "r+b", buffering=0) as file:
            file.write(b"\n" + line if files.ends_within_a_line(file) else line)


def _how_it_ended(pid: int) -> Optional[int]:
    """The status of a process which is not our child and is ending; None where its parent has waited for it already."""
    limit = time.monotonic() + _ENDS_S
    with contextlib.suppress(OSError, ValueError, IndexError):
        while True:
            late = time.monotonic() >= limit  # we may have stood still ourselves: it is looked at once more
            fields = processes.stat(pid)
            status = int(fields[49])  # exit_code
            if status or fields[0] in (b"Z", b"X"):
                return status
            if late:
                break
            time.sleep(0.005)  # its channels are closed a moment before
    return None


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return files.read_word(path).decode(errors="replace")
    return ""


def _signal_of(crash: str) -> int:
    """Of what faulthandler has written; 0 where it has not."""
    said = crash.partition("\n")[0].lower().replace("-", " ")
    return next((number for words, number in _FAULTS.items() if words in said), 0)
