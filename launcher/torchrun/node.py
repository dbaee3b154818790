"""This node's agent as our child: forked from this process, signals are passed on to it, and it exits when we do."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from launcher.agent.node import below
from launcher.agent.secret_files import KEY_FILE

if TYPE_CHECKING:
    from types import FrameType

    from launcher.agent.job import Job

_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that are passed on to the agent, besides those that it stops for."""

_PIPE_BYTES = 1 << 20


_ENDS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class Agent:
    """The agent process, with its `stream` to read."""

    def __init__(self, job: Job, node_rank: int, python: str) -> None:
        """`python`: the interpreter that has torch."""
        self.hurries = False
        """Whether a signal wants us to end, too: not the first Ctrl-C, after which a user may read on in a pager."""

        self._interrupted_at, self._same_s = float("inf"), job.same_signal_s
        self._ends = {signal.Signals[name] for name in {*_ENDS, *(job.stop_signals or ())}}
        self.stream, writer = os.pipe()
        with contextlib.suppress(OSError):  # above the user's limit; the default works, too
            fcntl.fcntl(self.stream, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        us = os.getpid()
        numbers = {signal.Signals[name] for name in {*_PASSED_ON, *(job.stop_signals or ())}}
        # Block signals until their handlers are installed: they would end us without a report of the run's end.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        self._pid = os.fork()
        if self._pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(self.stream)
            _become(job, node_rank, python, writer, us)
        os.close(writer)
        if "fd" in job.rendezvous:
            os.close(job.rendezvous["fd"])
        for number in numbers:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                with contextlib.suppress(OSError):  # SIGKILL and SIGSTOP
                    signal.signal(number, self._pass_on)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and now - self._interrupted_at < self._same_s and _watched():
            self._interrupted_at = min(self._interrupted_at, now)
        elif number in self._ends:
            self.hurries = True
        if self._pid:
            # If we were started with SIGCHLD ignored, the child's PID is not kept for us.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self) -> None:
        """Wait until the agent has exited, which it does after the end of its stream."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        pid, self._pid = self._pid, 0  # later signals have no receiver
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _watched() -> bool:
    """Whether a user sits at a terminal here."""
    return os.isatty(0) or os.isatty(2)


def _become(job: Job, node_rank: int, python: str, stream: int, parent: int) -> NoReturn:
    """Become the agent."""
    try:
        archive = os.path.join(job.directory, below.ARCHIVE)
        if python == sys.executable:
            sys.argv = [archive]  # its fork server is started from here
            below.run(job, node_rank, stream, parent)
        _write_spec(job)
        os.dup2(stream, 1)
        if "fd" in job.rendezvous:
            os.set_inheritable(job.rendezvous["fd"], True)
        spec = os.path.join(job.directory, "spec.json")
        os.execv(python, [python, archive, "--spec", spec, "--node-rank", str(node_rank), "--below", str(parent)])
    finally:
        import traceback

        with contextlib.suppress(OSError), open(os.path.join(job.directory, "stderr"), "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        os._exit(1)


def _write_spec(job: Job) -> None:
    """Write the job for an agent that is another program."""
    for name, text in (("spec.json", json.dumps(job.to_json())), (KEY_FILE, job.key)):
        with open(os.path.join(job.directory, name), "w", encoding="ascii") as file:
            file.write(text)
