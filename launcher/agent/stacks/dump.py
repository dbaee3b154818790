"""Has a worker write its Python stacks: CPython's faulthandler answers a signal, whatever the script does.

The handler is C code. It runs while the worker waits in native code, needs no GIL and no ptrace, and interrupts
nothing: system calls are restarted. The script sees neither a handler in `signal.getsignal` nor a module.

The signal is the third from the top: glibc and musl take the first real-time signals for themselves, and profilers and
collectors (PAPI, HPCToolkit, Boehm's, .NET) count from there. valgrind takes the last one, and the fork server uses the
last two. A script that handles it itself gets it, and then there are no stacks of that worker.

It writes to a file in memory. On a host without /dev/shm, that file has no name, and is found by its descriptor: the
run's disk may be what the ranks hang on, and neither the agent nor the fork server may wait for it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
from typing import Dict

from ..system.processes import ASKS_FOR_STACKS as SIGNAL
from ..system.scratch import in_memory

_HIGHEST = 1024
"""The descriptor is below this: the kernel's table grows with the highest one, and `select` takes no higher ones."""

_NAME = "distlaunch-stacks"
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
"""The system call's number: a Python that was built for an old C library, as conda's is, does not have it."""

_CLOSE_ON_EXEC = 1

CANNOT = "TtDZX"
"""States in which a process runs no handler, as in proc_pid_stat(5)."""


def path_of(scratch: str, pid: int) -> str:
    """Where that worker writes its stacks; empty if it does not, as it has started a program."""
    if in_memory(scratch):
        return os.path.join(scratch, f"stacks-{pid}")
    with contextlib.suppress(OSError):
        for number in sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True):
            path = f"/proc/{pid}/fd/{number}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{_NAME}"):
                    return path
    return ""


def register(scratch: str) -> None:
    """Have this process, a worker, write the stacks of all its threads when it gets the signal.

    The descriptor is as high as possible, so that those which the script opens have the numbers that they always have.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    number = (_HIGHEST if soft == resource.RLIM_INFINITY else min(soft, _HIGHEST)) - 1
    with contextlib.suppress(OSError, ValueError):  # no memory or no descriptors: the worker runs without
        fd = _opened(scratch)
        os.dup2(fd, number, inheritable=False)
        os.close(fd)
        faulthandler.register(SIGNAL, file=number, all_threads=True)


def _opened(scratch: str) -> int:
    if in_memory(scratch):
        return os.open(path_of(scratch, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    import ctypes  # a worker has it; the agent, which asks, would read it from a disk
    import fcntl

    fd = ctypes.CDLL(None).syscall(_MEMFD_CREATE.get(os.uname().machine, -1), _NAME.encode(), _CLOSE_ON_EXEC)
    if fd >= 0:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return int(fd)


def status(pid: int) -> Dict[str, str]:
    """The fields of /proc/PID/status; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def answers(pid: int, scratch: str) -> bool:
    """Whether the process would write its stacks now. Any other process would be ended by the signal."""
    fields = status(pid)
    if not fields or fields.get("State", "Z")[0] in CANNOT or not os.path.exists(path_of(scratch, pid)):
        return False
    waiting = _has(fields, "SigPnd") or _has(fields, "ShdPnd") or _has(fields, "SigBlk")
    return _has(fields, "SigCgt") and not waiting


def _has(fields: Dict[str, str], name: str) -> bool:
    return bool(int(fields.get(name, "0"), 16) >> (SIGNAL - 1) & 1)


def ask(pid: int, scratch: str) -> None:
    """Ask a child of this process for its stacks; one that starts a program just now has no handler any more."""
    if answers(pid, scratch):
        os.kill(pid, SIGNAL)
