"""How an agent that was started on this host begins: once it is recorded, unless the run was cancelled meanwhile."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Callable, Dict, Optional, Tuple

from ..cause import signal_name
from ..node.stops import CANCEL
from ..system import files, processes
from .user_files import HostError

FIRST_LINE_S = 60.0
Request = Dict[str, Any]


def let_go(go: Callable[[], object], own: str, identity: Request) -> None:
    """Record the agent, then let it begin, unless the run was cancelled meanwhile."""
    write(os.path.join(own, "started.json"), json.dumps(identity))
    if os.path.exists(os.path.join(own, CANCEL)):
        raise HostError("the run was cancelled while it was started")
    go()


def first_word(identity: Request, own: str, hears: Optional[int] = None) -> Tuple[bool, Optional[int]]:
    """Whether the agent has begun, for which this waits; its exit code if it has exited instead.

    A forked agent reports it through the pipe `hears`, once nothing of this host can keep it from its work. An agent
    that another program starts has closed that, and writes to its stream.
    """
    began, code, written = time.monotonic(), None, False
    if hears is not None and select.select([hears], [], [], FIRST_LINE_S)[0] and os.read(hears, 1):
        return True, None
    stream, before = os.path.join(own, "stream"), identity["stream_from"]
    while not written and code is None and time.monotonic() < began + FIRST_LINE_S:
        time.sleep(min(0.1, 0.005 + (time.monotonic() - began) / 10))
        code, written = _status_of_any(identity["pid"]), os.stat(stream).st_size > before
    return written, code


def how(code: Optional[int]) -> str:
    """How an agent ended."""
    if code is None:
        return "it gave no reason"
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def status(pid: int) -> Optional[int]:
    """The exit code of a child; None if it still runs."""
    ended, code = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(code) if ended else None


def _status_of_any(pid: int) -> Optional[int]:
    """The same; of a process that is no child, only whether it runs is known."""
    try:
        return status(pid)
    except ChildProcessError:  # it was forked from a standing server
        return None if processes.start_ticks(pid) is not None else -9


def write(path: str, text: str) -> None:
    """Write a file that no other user can read."""
    files.write_whole(path, text.encode("ascii"), 0o600, sync=False)
