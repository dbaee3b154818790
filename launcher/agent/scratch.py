"""The small files between an agent and its workers, in this machine's memory: no disk is waited for to say that something broke.

The workers' error files and the deadline are there; where the machine has no such folder, they are in the node's own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Callable, Iterator, List, TypeVar

from . import processes

_MEMORY = "/dev/shm"  # noqa: S108 - each agent has a folder of its own there, for its owner alone
T = TypeVar("T")


class Scratch:
    """One agent's folder; `close` when nobody needs it any more."""

    def __init__(self, folder: str, memory: str = _MEMORY) -> None:
        """`folder`: the node's, where error files of rounds that are over are kept."""
        self._kept = os.path.join(folder, "errors")
        self.path = folder
        for name in _dead(memory):
            remove(os.path.join(memory, name))
        me = os.getpid()
        own = os.path.join(memory, f"{_prefix()}{me}-{processes.start_ticks(me)}")
        with contextlib.suppress(OSError):
            os.mkdir(own, 0o700)
            self.path = own
        os.makedirs(os.path.join(self.path, "errors"), exist_ok=True)

    def keep(self, before: str) -> None:
        """Move error files of rounds before that one into the node's folder, whenever its disk takes them."""
        if self.path != os.path.dirname(self._kept):
            threading.Thread(target=lambda: self._move(before), daemon=True, name="errors").start()

    def close(self, limit_s: float = 2.0) -> None:
        """Move all there is, and remove the folder."""
        if self.path != os.path.dirname(self._kept):
            within(limit_s, lambda: self._move(""), None)
            remove(self.path)

    def _move(self, before: str) -> None:
        errors = os.path.join(self.path, "errors")
        with contextlib.suppress(OSError):
            os.makedirs(self._kept, exist_ok=True)
            for name in os.listdir(errors):
                number = name.partition("-")[0]
                if not before or (number.isdigit() and int(number) < int(before)):
                    with open(os.path.join(errors, name), "rb") as file:
                        data = file.read()
                    with open(os.path.join(self._kept, name), "wb") as file:
                        file.write(data)
                    os.remove(os.path.join(errors, name))


def remove(path: str) -> None:
    """Remove a folder with what is in it; nothing else is touched where `path` is no agent's."""
    with contextlib.suppress(OSError):
        for folder in (os.path.join(path, "errors"), path):
            for entry in list(os.scandir(folder)):
                if not entry.is_dir(follow_symlinks=False):
                    os.remove(entry.path)
            os.rmdir(folder)


def within(limit_s: float, task: Callable[[], T], otherwise: T) -> T:
    """What it returns, unless it takes longer, as a disk that stalls does; then it goes on without us."""
    found: List[T] = []
    thread = threading.Thread(target=lambda: found.append(task()), daemon=True, name="within")
    thread.start()
    thread.join(limit_s)
    return found[0] if found else otherwise


def _prefix() -> str:
    """Of the agents of this user whose pids mean something to us."""
    return f"distlaunch-{os.getuid()}-{os.stat('/proc/self/ns/pid').st_ino}-"


def _dead(memory: str) -> Iterator[str]:
    """Folders of agents that were killed together with their fork servers."""
    with contextlib.suppress(OSError):
        for name in os.listdir(memory):
            pid, _, ticks = name[len(_prefix()) :].partition("-") if name.startswith(_prefix()) else ("", "", "")
            if pid.isdigit() and str(processes.start_ticks(int(pid))) != ticks:
                yield name
