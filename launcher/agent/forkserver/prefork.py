"""A fork server forked from the agent, or from the Python that a login has started, to save its start and its imports.

Used only if no script can tell it from a new one: it has the same options, and its environment gets no variable that a
process reads when it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Iterable, Optional, Sequence

from ..channel import Channel
from ..named_tuple import NamedTuple
from ..system import processes
from . import cpython
from .forks import READ_AT_START, Child

if TYPE_CHECKING:
    from ..messages import AgentGroup, AgentServer, GroupAgent, ServerAgent

_OPTION = "-u"
"""The one option with which Python must have been started: a fork server has it."""

_LOOK_S, _LOOK_LATER_S = 0.0005, 0.005


class Process:
    """The part of `subprocess.Popen` that a fork server needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: Optional[int] = None

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._ended() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: Optional[float] = None) -> int:
        """Wait for its exit code; raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        began, pause = time.monotonic(), _LOOK_S
        while self._ended(0 if timeout is None else os.WNOHANG) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                import subprocess

                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_LATER_S)
        assert self._code is not None
        return self._code

    def _ended(self, flags: int = os.WNOHANG) -> Optional[int]:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # it was reaped elsewhere
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class Forked(NamedTuple):
    """A fork server that waits for its job, and the agent's ends of the channels to it."""

    process: Process
    channel: AgentServer
    group: AgentGroup
    stderr: int
    """The read end of its stderr."""


def fork(variables: Iterable[str], command: Sequence[str], cwd: Optional[str] = None) -> Optional[Forked]:
    """Fork a fork server for workers with this command; None if a script may notice.

    `variables`: those that its workers get and this process has not. `cwd`: its working directory; None: that of this
    process. Raises `Child` in the child.
    """
    options = getattr(sys, "orig_argv", [])[1:3]  # from Python 3.10 on
    alike = options in ([_OPTION, "-c"], [_OPTION, sys.argv[0]]) and not any(
        name.startswith(READ_AT_START) for name in variables
    )
    # UTF-8 mode is on in a login without a locale, and off in what Python starts from there.
    alike = alike and not sys.flags.utf8_mode
    room = sum(len(os.fsencode(word)) + 1 for word in [sys.executable, "-u", "-m", *command]) <= processes.title_bytes()
    if not alike or not room or cpython.exit_hooks():
        return None
    return fork_for_program(cwd, scripts=True)


def fork_for_program(cwd: Optional[str] = None, *, scripts: bool = False) -> Optional[Forked]:
    """The same for workers that are no Python scripts, which cannot tell it from a new one; None if threads run.

    `scripts`: workers may be scripts nonetheless, so it imports only what a new one does.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        return None
    channel: AgentServer
    server_end: ServerAgent
    group: AgentGroup
    group_end: GroupAgent
    (channel, server_end), (group, group_end), (stderr, own_stderr) = Channel.pair(), Channel.pair(), os.pipe()
    pid = os.fork()
    if pid:
        server_end.close()
        group_end.close()
        os.close(own_stderr)
        return Forked(Process(pid), channel, group, stderr)
    channel.close()
    group.close()
    if cwd is not None:
        os.chdir(cwd)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in (1, 2):
        os.dup2(own_stderr, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):  # as a new process has none of them
        if fd > 2 and fd not in (server_end.fileno(), group_end.fileno()):
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(fd)
    processes.set_title([sys.executable, "-u", sys.path[0], "--fork-server"])
    from . import imported, server, worker

    if scripts and imported.used() is not None:
        pass  # handlers of loggers hold the present ones, which are for the same descriptors
    elif scripts:
        for name in ("stdin", "stdout", "stderr"):
            worker.renew(name)
    else:  # while the agent prepares the setup
        from ..group import process, worker_group  # noqa: F401 - for the worker group's process, which is forked from this one
    raise Child(lambda: server.serve(server_end, group_end))
