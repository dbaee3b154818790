"""What the kernel tells about a process that cannot tell anything itself: stopped, or waiting for a device."""

from __future__ import annotations

import os
import re
from typing import Optional

from .dump import CANNOT, status

_ON_FILES = {
    "x86_64": {0: "read", 1: "write", 5: "fstat", 17: "pread", 18: "pwrite", 19: "readv", 20: "writev"},
    "aarch64": {63: "read", 64: "write", 67: "pread", 68: "pwrite", 65: "readv", 66: "writev", 80: "fstat"},
}
"""System calls by number whose first argument is a descriptor."""

_OTHERS = {
    "x86_64": {2: "open", 4: "stat", 7: "poll", 35: "nanosleep", 61: "wait4", 202: "futex", 230: "clock_nanosleep",
               232: "epoll_wait", 257: "openat", 262: "newfstatat", 281: "epoll_pwait", 332: "statx"},
    "aarch64": {22: "epoll_pwait", 56: "openat", 73: "ppoll", 79: "newfstatat", 98: "futex", 101: "nanosleep",
                115: "clock_nanosleep", 260: "wait4", 291: "statx"},
}  # fmt: skip
_STOPPED = "tT"
_HELD = "tTD"
_FILE_SYSTEM = "request_wait_answer"
"""Where the kernel waits for the server of a FUSE file system: until a signal comes, that counts as sleep."""

_MAX_FRAMES = 5


def runs(pid: int) -> bool:
    """Whether the process is neither stopped, nor in an uninterruptible wait, nor over."""
    return status(pid).get("State", "Z")[0] not in CANNOT


def words(pid: int) -> str:
    """A process's state, system call and place in the kernel: `D (disk sleep), read of /data/x, in fuse_... < ...`.

    Without the rights to read all of the stack, only its innermost function is known.
    """
    state = status(pid).get("State", "")
    if not state or state[0] in _STOPPED:
        return state or "it has ended"
    places = re.findall(r"\] ([\w.]+)\+", _read(f"/proc/{pid}/stack"))[:_MAX_FRAMES]
    where = " < ".join(places) or _read(f"/proc/{pid}/wchan").strip("0")
    return ", ".join(filter(None, [state, _call(pid), where and f"in {where}"]))


def is_held(said: str) -> bool:
    """Whether a process of which `words` said this runs only once it is continued, or a device or file answers."""
    return said[:1] in tuple(_HELD) or _FILE_SYSTEM in said


def _call(pid: int) -> str:
    """The system call in which the process is, with the file of a descriptor."""
    words = _read(f"/proc/{pid}/syscall").split()
    if len(words) < 2 or not words[0].isdigit():
        return ""
    number, machine = int(words[0]), os.uname().machine
    name = _ON_FILES.get(machine, {}).get(number)
    if name is None:
        return _OTHERS.get(machine, {}).get(number, f"system call {number}")
    path = _file(pid, int(words[1], 16))
    return f"{name} of {path}" if path else name


def _file(pid: int, fd: int) -> Optional[str]:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")[:200]
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(16 * 1024).strip()
    except OSError:
        return ""
