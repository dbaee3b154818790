"""Small files between an agent and its workers, kept in memory so that reporting a failure does not wait for a disk.

They are the workers' error files, the deadline, and files of Open MPI. On a host without /dev/shm, they are in the
node's own directory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import stat
import threading
from typing import Callable, Iterator, List, Optional, TypeVar

from . import processes, threads

_MEMORY = "/dev/shm"  # noqa: S108 - each agent has its own private directory there
_NAME = r"distlaunch-[0-9]+-[0-9]+-([0-9]+)-([0-9]+)\Z"
CRASH = "crash"
"""File in an agent's directory that records how it crashed."""

ENVIRONMENT = "environment"
"""File in an agent's directory with its variables, as in /proc, if /proc does not have them."""

T = TypeVar("T")


class Scratch:
    """One agent's directory; `close` it when it is no longer needed."""

    def __init__(self, directory: str, memory: str = _MEMORY) -> None:
        """`directory`: the node's, which keeps the error files of finished rounds."""
        self._kept = os.path.join(directory, "errors")
        self.path = directory
        for name in _dead(memory):
            remove(os.path.join(memory, name))
        me = os.getpid()
        own = os.path.join(memory, f"{_prefix()}{me}-{processes.start_ticks(me)}")
        with contextlib.suppress(OSError):
            os.mkdir(own, 0o700)
            self.path = own
        os.makedirs(os.path.join(self.path, "errors"), 0o700, exist_ok=True)

    def keep_crash(self) -> None:
        """Have the interpreter record a crash of this process, as only its parent sees the exit status."""
        if self.path != os.path.dirname(self._kept):
            faulthandler.enable(os.open(os.path.join(self.path, CRASH), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def keep(self, before: str) -> None:
        """Move error files of rounds before that one to the node's directory, without waiting for its disk."""
        if self.path != os.path.dirname(self._kept):
            threads.started(threading.Thread(target=lambda: self._move(before), daemon=True, name="errors"))

    def close(self, limit_s: float = 2.0) -> None:
        """Move all remaining error files, and remove the directory."""
        if self.path != os.path.dirname(self._kept):
            within(limit_s, lambda: self._move(""), None)
            remove(self.path)

    def _move(self, before: str) -> None:
        errors = os.path.join(self.path, "errors")
        with contextlib.suppress(OSError):
            os.makedirs(self._kept, exist_ok=True)
            for name in os.listdir(errors):
                number = name.partition("-")[0]
                if not before or (number.isdecimal() and int(number) < int(before)):
                    with open(os.path.join(errors, name), "rb") as file:
                        data = file.read()
                    with open(os.path.join(self._kept, name), "wb") as file:
                        file.write(data)
                    os.remove(os.path.join(errors, name))


def remove(path: str) -> None:
    """Remove an agent's directory and its contents; any other directory, or one not private to us, is left alone.

    Any user may create directories and links there, so files are reached only through directories that were checked.
    """
    memory, name = os.path.split(path)
    if not re.match(_NAME, name):
        return
    with contextlib.suppress(OSError), _opened(os.path.realpath(memory)) as above, _ours(name, above) as directory:
        _empty(directory)
        os.rmdir(name, dir_fd=above)


@contextlib.contextmanager
def _opened(name: str, above: Optional[int] = None) -> Iterator[int]:
    """Open a directory, not a link to one."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _ours(name: str, above: int) -> Iterator[int]:
    """Open a directory to which no other user has access; otherwise raise `PermissionError`."""
    with _opened(name, above) as fd:
        about = os.fstat(fd)
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise PermissionError
        yield fd


def _empty(directory: int) -> None:
    for name in os.listdir(directory):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            with _opened(name, directory) as below:
                if os.fstat(below).st_uid != os.getuid():
                    raise PermissionError from None
                _empty(below)
            os.rmdir(name, dir_fd=directory)


def in_memory(path: str) -> bool:
    """Whether this agent's directory is on this host, and not the node's in the run."""
    return re.match(_NAME, os.path.basename(path)) is not None


def within(limit_s: float, task: Callable[[], T], otherwise: T) -> T:
    """The task's result, or `otherwise` if it takes longer, as on a stalled disk; it then continues in its thread.

    If no thread can be started, there is no limit.
    """
    found: List[T] = []
    thread = threading.Thread(target=lambda: found.append(task()), daemon=True, name="within")
    if not threads.started(thread):
        return task()
    thread.join(limit_s)
    return found[0] if found else otherwise


def _prefix() -> str:
    """The name prefix of this user's agents in our pid namespace."""
    return f"distlaunch-{os.getuid()}-{os.stat('/proc/self/ns/pid').st_ino}-"


def _dead(memory: str) -> Iterator[str]:
    """The names of directories of agents that were killed together with their fork servers."""
    prefix = _prefix()
    with contextlib.suppress(OSError):
        for name in os.listdir(memory):
            pid, _, began = name[len(prefix) :].partition("-") if name.startswith(prefix) else ("", "", "")
            if pid.isdecimal() and began.isdecimal() and str(processes.start_ticks(int(pid))) != began:
                yield name
