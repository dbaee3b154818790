"""Processes by identity: descendants are found through their parents, and no other process is touched."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from typing import Collection, Dict, Iterator, List, Optional, Set, Tuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MANY_FILES = 65536
_KILL_S = 5.0
_LOOK_S, _LOOK_LATER_S = 0.001, 0.01
_MANY = 16
"""So many children exit in a moment: we look at all of them after a pause, not after each."""

_LAST_WORD_S = 1.0
"""How long an agent may take to report its end after its descendants were killed."""

ASKS_FOR_STACKS = 62
"""Asks an agent for the stacks of its workers, and a worker for its own: SIGRTMAX - 2. See `stacks/dump.py`."""

ASKS_ALL_FOR_STACKS = signal.SIGWINCH
"""Asks agents whose scheduler signals all processes of a job: all others ignore this one by default."""

_libc = ctypes.CDLL(None, use_errno=True)

PASSED_ON = frozenset(signal.valid_signals()) - {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE,
    signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ,
}  # fmt: skip
"""Signals that may be sent on purpose; the others result from a process's own actions, or cannot be caught."""


def become_subreaper() -> None:
    """Adopt orphans among our descendants, however often they fork and whatever sessions they create."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent exits."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it exited before the call
        os.kill(os.getpid(), number)


def allow_files(count: int) -> int:
    """Let this process open `count` files, as far as its hard limit allows; how many of them it may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def allow_all_files() -> int:
    """Let this process open as many files as its hard limit allows; the previous limit, for `limit_files`."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_files(_MANY_FILES if hard == resource.RLIM_INFINITY else hard)
    return before


def limit_files(soft: int) -> None:
    """Set the soft limit of open files, for this process and those that it starts."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Let this process open as many files as its hard limit allows, for the time being."""
    before = allow_all_files()
    try:
        yield
    finally:
        limit_files(before)


def handle(number: int, what: signal.Handlers) -> None:
    """Ignore a signal, or restore its default action; works in any thread, as it bypasses Python."""
    _libc.signal(int(number), ctypes.c_void_p(int(what)))


def options() -> List[str]:
    """The options this interpreter was started with, except a final -u; a `python` that is a script may add some."""
    words = list(getattr(sys, "orig_argv", ()))[1:]  # from Python 3.10 on
    if not words:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")][1:]
    found: List[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-", "-c", "-m"):
        count = 2 if _takes_value(words[0]) else 1
        found += words[:count]
        del words[:count]
    return found[:-1] if found[-1:] == ["-u"] else found


def _takes_value(option: str) -> bool:
    """Whether the next word belongs to the option: -X and -W, also after others in one word."""
    short = option[-1:] in ("X", "W") and not set(option[1:-1]) & set("XW-")
    return short or option == "--check-hash-based-pycs"


def set_title(argv: List[str]) -> None:
    """Show `argv` in ps and /proc/self/cmdline: overwrites this process's arguments if they are as long."""
    start, room = _title_area()
    title = b"\0".join(os.fsencode(arg) for arg in argv) + b"\0"
    if len(title) <= room:
        ctypes.memmove(start, title.ljust(room, b"\0"), room)


def title_bytes() -> int:
    """The size of the longest title that fits, with its separators."""
    return _title_area()[1]


def stat(pid: object) -> List[bytes]:
    """The fields of proc_pid_stat(5) after the name, which may contain anything; the first is the state."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _title_area() -> Tuple[int, int]:
    """The address of this process's arguments in memory, and their size."""
    try:
        fields = stat("self")
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end of proc_pid_stat(5)
    except (OSError, IndexError, ValueError):
        return 0, 0
    return (start, end - start) if start > 0 else (0, 0)


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot: with the pid, its identity. None: no process, or a zombie.

    Raises `OSError` if that cannot be determined, for example without a free descriptor.
    """
    try:
        fields = stat(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def children() -> List[int]:
    """Our direct children, zombies included. No other process can reap them, so their pids are not reused."""
    listed = _listed_children()
    return _children_among_all() if listed is None else listed


def _listed_children() -> Optional[List[int]]:
    """As the kernel lists them by thread; None if it does not (CONFIG_PROC_CHILDREN), or a thread ends meanwhile."""
    found: List[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        return None
    return found


def _children_among_all() -> List[int]:
    return [pid for pid, fields in _all() if int(fields[1]) == os.getpid()]


def _all() -> Iterator[Tuple[int, List[bytes]]]:
    """The pids of all processes, of which a host may have thousands, each with what `stat` returns."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry), stat(entry)


def below(pid: int) -> List[Tuple[int, int]]:
    """The pid and start time of all descendants of that process, zombies excluded."""
    return below_each([pid])[pid]


def below_each(pids: Collection[int]) -> Dict[int, List[Tuple[int, int]]]:
    """The same for each of these processes, by one look at those of the host."""
    of: Dict[int, List[Tuple[int, int]]] = {}
    for pid, fields in _all():
        if fields[0] not in (b"Z", b"X"):
            of.setdefault(int(fields[1]), []).append((pid, int(fields[19])))
    found = {pid: list(of.get(pid, ())) for pid in pids}
    for descendants in found.values():
        for child, _ in descendants:
            descendants.extend(of.get(child, ()))
    return found


def kill_tree(pid: int, ticks: int) -> None:
    """Kill all descendants of that process, which need not be ours, then the process itself if it has not exited.

    An agent comes last: as a subreaper, it adopts what the others leave behind, even while it is stopped.
    """
    limit = time.monotonic() + _KILL_S
    while start_ticks(pid) == ticks and time.monotonic() < limit:
        left = below(pid)
        for child, began in left:
            _kill(child, began)
        if not left and time.monotonic() > limit - _KILL_S + _LAST_WORD_S:
            _kill(pid, ticks)
        time.sleep(0.01)


def kill_below(pid: int) -> None:
    """Kill all descendants of that process, once."""
    for child, began in below(pid):
        _kill(child, began)


def _kill(pid: int, ticks: int) -> None:
    with contextlib.suppress(OSError):  # it has exited, or runs as another user
        if start_ticks(pid) == ticks:
            os.kill(pid, signal.SIGKILL)


def have_none() -> bool:
    """Whether we have no children at all, without a look at all processes of the host."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def sweep(keep: Collection[int] = (), patience_s: float = 0.5, limit_s: float = 10.0) -> List[int]:
    """End all our descendants except `keep`: SIGTERM, then SIGKILL after `patience_s`. Returns children that remain.

    A child's own children become ours when it exits, so killing children until there are none reaches the whole tree.
    """
    began, pause = time.monotonic(), _LOOK_S
    sent: Set[int] = set()
    while not have_none():
        left = [pid for pid in children() if pid not in keep and not _reap(pid)]
        age = time.monotonic() - began
        if age > limit_s:
            return left
        if not left:
            # What the last one left behind is our child by now; the kernel's list lacks it while a thread ends.
            if not [pid for pid in _children_among_all() if pid not in keep]:
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
        if len(left) > _MANY or not wait_for_any(left, pause):
            time.sleep(pause)
        pause = min(2 * pause, _LOOK_LATER_S)
    return []


def wait_for_any(pids: Collection[int], limit_s: float) -> bool:
    """Wait until one of these children has exited, at most for this time. False at once if that cannot be waited for.

    One may be no child any more, and another process may have its number; it may be a zombie that only its debugger can
    reap yet; or there are no pidfds here: Linux has them since 5.3, and Python if it was built with headers of such a
    kernel.
    """
    fds: List[int] = []
    try:
        poll = select.poll()
        for pid in pids:
            fds.append(os.pidfd_open(pid))
            poll.register(fds[-1], select.POLLIN)
            _has_exited(pid)
        if poll.poll(limit_s * 1000) and not any(_has_exited(pid) for pid in pids):
            return False
    except (AttributeError, OSError):
        return False
    finally:
        for fd in fds:
            os.close(fd)
    return True


def _has_exited(pid: int) -> bool:
    """Whether a child can be reaped; `ChildProcessError` if it is none."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
