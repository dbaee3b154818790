"""Processes by identity: every descendant of ours is found through its parent, and nothing else is ever touched."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
import time
from typing import Collection, Dict, List, Optional, Set, Tuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MANY_FILES = 65536
_KILL_S = 5.0
_LAST_WORD_S = 1.0
"""So long an agent may say how it ended, when all below it was killed."""

_WITH_VALUE = re.compile("-[^XW-]*[XW]|--check-hash-based-pycs")
"""Options of Python whose value is the next word."""

_libc = ctypes.CDLL(None, use_errno=True)

PASSED_ON = frozenset(signal.valid_signals()) - {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE,
    signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ,
}  # fmt: skip
"""Signals that somebody may send on purpose; the rest are a process's own faults, or cannot be caught."""


def become_subreaper() -> None:
    """Orphans among our descendants become our children, however often they fork and whatever session they make."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """That signal for this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), number)


def allow_files(count: int) -> int:
    """Let this process open so many files, as far as its hard limit allows; how many it may open then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def allow_all_files() -> int:
    """Let this process open as many files as its hard limit allows; the limit that it had before, for `limit_files`."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_files(_MANY_FILES if hard == resource.RLIM_INFINITY else hard)
    return before


def limit_files(soft: int) -> None:
    """Give this process, and what it starts, that soft limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def handle(number: int, what: signal.Handlers) -> None:
    """Ignore a signal, or leave it to the kernel; from any thread, as Python does not see it."""
    _libc.signal(int(number), ctypes.c_void_p(int(what)))


def options() -> List[str]:
    """Those that this interpreter was started with, but for a last -u: a `python` that is a script may add some."""
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")]
    found: List[str] = []
    words = list(getattr(sys, "orig_argv", words))[1:]  # from Python 3.10 on
    while words and words[0].startswith("-") and words[0] not in ("-", "-c", "-m"):
        count = 2 if _WITH_VALUE.fullmatch(words[0]) else 1
        found += words[:count]
        del words[:count]
    return found[:-1] if found[-1:] == ["-u"] else found


def set_title(argv: List[str]) -> None:
    """Show `argv` in ps and /proc/self/cmdline: written over this process's own arguments, where they are at least as long."""
    start, room = _title_area()
    title = b"\0".join(os.fsencode(arg) for arg in argv) + b"\0"
    if len(title) <= room:
        ctypes.memmove(start, title.ljust(room, b"\0"), room)


def title_bytes() -> int:
    """The longest title, with its separators, that there is room for."""
    return _title_area()[1]


def stat(pid: object) -> List[bytes]:
    """The fields of proc_pid_stat(5) behind the name, which may hold anything: the state comes first."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _title_area() -> Tuple[int, int]:
    """Where in memory this process's arguments are, and how many bytes there are."""
    try:
        fields = stat("self")
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end of proc_pid_stat(5)
    except (OSError, IndexError, ValueError):
        return 0, 0
    return (start, end - start) if start > 0 else (0, 0)


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot: with the pid its identity. None: no such process of ours, or a zombie.

    `OSError` where that cannot be known, as by a process that has no descriptor left.
    """
    try:
        fields = stat(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def children() -> List[int]:
    """Our direct children, zombies included. Nobody else can reap them, so their pids stay theirs."""
    me = os.getpid()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = stat(entry)
            except OSError:
                continue
            if int(fields[1]) == me:
                found.append(int(entry))
    return found


def below(pid: int) -> List[Tuple[int, int]]:
    """Pid and start time of all that runs below that process, zombies excluded."""
    of: Dict[int, List[Tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = stat(entry)
                if fields[0] not in (b"Z", b"X"):
                    of.setdefault(int(fields[1]), []).append((int(entry), int(fields[19])))
    found = list(of.get(pid, ()))
    for child, _ in found:
        found += of.get(child, ())
    return found


def kill_tree(pid: int, ticks: int) -> None:
    """SIGKILL for all below that process, which may not be ours, then for it, where that does not end it.

    An agent is left until last: a subreaper becomes the parent of whatever the others leave behind, also while it is stopped.
    """
    limit = time.monotonic() + _KILL_S
    while start_ticks(pid) == ticks and time.monotonic() < limit:
        left = below(pid)
        for child, began in left:
            _kill(child, began)
        if not left and time.monotonic() > limit - _KILL_S + _LAST_WORD_S:
            _kill(pid, ticks)
        time.sleep(0.01)


def _kill(pid: int, ticks: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or runs as another user
        if start_ticks(pid) == ticks:
            os.kill(pid, signal.SIGKILL)


def sweep(keep: Collection[int] = (), patience_s: float = 0.5, limit_s: float = 10.0) -> List[int]:
    """End all our descendants but `keep`: SIGTERM, after `patience_s` SIGKILL. Returns children that would not die.

    A child's own children become ours when it ends, so killing children until there are none reaches the whole tree.
    """
    began = time.monotonic()
    sent: Set[int] = set()
    while True:
        left = [pid for pid in children() if pid not in keep and not _reap(pid)]
        age = time.monotonic() - began
        if age > limit_s:
            return left
        if not left:
            if not [pid for pid in children() if pid not in keep]:  # what the last one left behind is ours by now
                return []
            continue
        for pid in left:
            with contextlib.suppress(PermissionError):  # it runs as another user; the limit ends the wait
                if age > patience_s:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in sent:
                    sent.add(pid)
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
