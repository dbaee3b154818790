"""The first agent of a run on this machine, whose Python starts while the launcher is still being imported.

It is the first of a command's modules, and imports only what a run needs anyway.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from launcher import payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.system import detached

_ROOM = 2048
"""Bytes of its command line, which that of the agent must fit in."""

_STANDARD_STREAMS = 3
_OTHERS = frozenset(("--help", "-h", "--dry-run", "--python", "--warm"))
"""Options with which no agent is started, or another one."""


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
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
        for number in range(_STANDARD_STREAMS):
            os.fstat(number)  # if one is closed, a pipe would take its place
        argv = [sys.executable, "-u", path, "--ahead", "-" * _ROOM]
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            argv, bufsize=0, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
        )
        _started.append(_Started(process, archive, dict(os.environ), cwd))


def take(argv: Sequence[str], place: detached.Place, told: list[detached.Told]) -> bool:
    """Have it become the agent with this command line; False if it cannot, or there is none.

    It begins once it is recorded, and is appended to `told`, so that the caller can wait until it has begun.
    """
    if not _started:
        return False
    from launcher.agent.system.processes import start_ticks

    ours = _started[-1]
    ticks = start_ticks(ours.process.pid)
    if ticks is None or not _is_alike(ours, argv, place.cwd):
        drop()
        return False
    import json

    from launcher.system import detached, proc

    _started.clear()
    ours.process.returncode = 0  # found by identity, not waited for, as in `detached.start_detached`
    told.append(detached.Told(argv[0], ours.process, place.stderr))
    for path in (place.stdout, place.stderr):
        detached.private(path).close()
    place.record(proc.Identity(ours.process.pid, ticks))
    told[-1].tell(json.dumps({"argv": argv, "outputs": [str(place.stdout), str(place.stderr)]}).encode())
    return True


def drop() -> None:
    """End it, if it is not taken."""
    while _started:
        with _started.pop().process as process:
            process.kill()


def _is_alike(ours: _Started, argv: Sequence[str], cwd: str) -> bool:
    """Whether it differs in nothing from what would be started with this command line."""
    from launcher.payload import agent_archive

    size = sum(len(os.fsencode(word)) + 1 for word in argv)
    if size > _ROOM or (argv[0], cwd, dict(os.environ)) != (sys.executable, ours.cwd, ours.env):
        return False
    with contextlib.suppress(OSError):
        return agent_archive.kept() is not None and _state(payload.kept_agent()) == ours.archive
    return False


def _state(path: str) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_ino, about.st_mtime_ns
