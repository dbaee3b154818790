"""A worker that becomes another program: a spawned one, or a forked one that starts again in its own interpreter."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from typing import Dict, List, NoReturn

from ..system import processes
from . import notes

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def execute(argv: List[str], env: Dict[str, str]) -> NoReturn:
    """Become that program, with signals as `subprocess.Popen` leaves them; exit with 127 or 126 if that fails."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program expects the defaults
        processes.handle(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"cannot execute {argv[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        os._exit(126 if isinstance(error, PermissionError) else 127)


class Again:
    """The initial state of a worker, and how to get back to it; invisible to the script."""

    def __init__(self, argv: List[str], env: Dict[str, str], scratch: str, *, may_spawn: bool) -> None:
        """`argv`: the command that torchrun would execute for it. `may_spawn`: the user has an option for that."""
        self._argv, self._env, self._scratch, self._may_spawn = argv, env, scratch, may_spawn
        self._pid, self._server, self._cwd = os.getpid(), os.getppid(), os.getcwd()
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
        self._limits = {kind: resource.getrlimit(kind) for kind in _LIMITS}
        self._cpus_and_niceness = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)

    def __call__(self, reasons: List[str]) -> None:
        """Start again, and report why to the fork server; a process that the script has forked only prints why."""
        if os.getpid() != self._pid:
            text = f"distlaunch: {'; '.join(reasons)}, in a forked process, where it has no effect"
            text += "; do it before the process is forked" + ", or use --start-method spawn" * self._may_spawn
            os.write(2, f"{text}\n".encode(errors="backslashreplace"))
            return
        notes.leave(self._scratch, notes.AGAIN, reasons, self._server)
        processes.sweep(patience_s=0.0)
        self._go_back()
        execute(self._argv, self._env)

    def _go_back(self) -> None:
        """Restore all that a program inherits."""
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if number in self._ignored:
                processes.handle(number, signal.SIG_IGN)
            elif signal.getsignal(number) == signal.SIG_IGN:
                processes.handle(number, signal.SIG_DFL)
        for kind, limits in self._limits.items():
            with contextlib.suppress(OSError, ValueError):  # a hard limit cannot be raised again
                resource.setrlimit(kind, limits)
        with contextlib.suppress(OSError):
            cpus, niceness = self._cpus_and_niceness
            os.sched_setaffinity(0, cpus)
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, False)
        with contextlib.suppress(OSError):  # the script has removed it, or made it inaccessible
            os.chdir(self._cwd)
        os.umask(self._umask)
