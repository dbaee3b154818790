"""The first agent of a run on this machine, whose Python starts while the launcher is still being imported.

Imports nothing that a command does not need: it is the first of a command's modules.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from launcher import payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.system import detached

_ROOM = 2048
"""Bytes of its command line, which that of the agent must fit in."""

_STANDARD = (0, 1, 2)
_OTHERS = frozenset(("--help", "-h", "--dry-run", "--python", "--warm"))
"""Options with which no agent is started, or another one."""


class _Started(NamedTuple):
    pid: int
    go: int
    """The write end of its stdin."""

    archive: tuple[int, int]
    env: dict[str, str]
    cwd: str


_started: list[_Started] = []


def start(words: Sequence[str]) -> None:
    """Start it, if a run of this command line may need it and its archive was packed by an earlier command."""
    path = payload.kept_agent()
    if not _OTHERS.isdisjoint(words) or not sys.executable:
        return
    with contextlib.suppress(OSError):
        archive, cwd = _state(path), os.getcwd()
        reads, go = os.pipe()
        try:
            if min(reads, go) > _STANDARD[-1]:  # otherwise a standard stream is closed, and opened later
                # Not `os.posix_spawn`, with which it would ignore the C library's own signals.
                pid = os.fork()
                if not pid:
                    _become([sys.executable, "-u", path, "--ahead", "-" * _ROOM], reads)
                _started.append(_Started(pid, go, archive, dict(os.environ), cwd))
        finally:
            os.close(reads)
            if not _started:
                os.close(go)


def _become(argv: list[str], stdin: int) -> NoReturn:
    """Execute the program in this child, as `subprocess` does."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        for number, fd in zip(_STANDARD, (stdin, null, null), strict=True):
            os.dup2(fd, number)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execv(argv[0], argv)
    finally:
        os._exit(os.EX_OSERR)


def take(argv: Sequence[str], place: detached.Place, told: list[detached.Told]) -> bool:
    """Have it become the agent with this command line; False if it cannot, or there is none.

    It begins once it is recorded, and is appended to `told`, so that the caller can wait until it has begun.
    """
    if not _started:
        return False
    from launcher.agent.system.processes import start_ticks
    from launcher.payload import agent_archive
    from launcher.system import detached, proc

    ours = _started[-1]
    size = sum(len(os.fsencode(word)) + 1 for word in argv)
    ticks = start_ticks(ours.pid)
    alike = (argv[0], place.cwd, dict(os.environ)) == (sys.executable, ours.cwd, ours.env) and size <= _ROOM
    is_kept = agent_archive.kept() is not None and _state(payload.kept_agent()) == ours.archive
    if not (alike and is_kept) or ticks is None:
        drop()
        return False
    _started.clear()
    import json

    outputs = place.stdout, place.stderr
    told.append(detached.Told(argv[0], ours.pid, os.fdopen(ours.go, "wb", buffering=0), place.stderr))
    for path in outputs:
        detached.private(path).close()
    place.record(proc.Identity(ours.pid, ticks))
    told[-1].tell(json.dumps({"argv": argv, "outputs": [str(path) for path in outputs]}).encode())
    return True


def drop() -> None:
    """End it, if it is not taken."""
    while _started:
        ours = _started.pop()
        os.close(ours.go)
        with contextlib.suppress(OSError):
            os.kill(ours.pid, signal.SIGKILL)
            os.waitpid(ours.pid, 0)


def _state(path: str) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_ino, about.st_mtime_ns
