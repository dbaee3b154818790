"""The fork servers that were left standing on this host by this user, each with a socket and a record in memory.

They are in one directory, private to the user and to the pid namespace: no other user can connect to them. A record
that outlived its process is removed by the next one who looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import time
from typing import Any, Dict, List, Optional

from ..named_tuple import NamedTuple
from ..system import processes

Json = Dict[str, Any]
DIRECTORY = "DISTLAUNCH_WARM_DIR"
"""The variable that names another place for the directory: on a disk of this host, with a short path."""

_PLACES = ("/dev/shm", "/tmp")  # noqa: S108 - the directory there is private, and checked
_ENDS_S = 5.0


class Standing(NamedTuple):
    """A fork server that waits for a run."""

    pid: int
    start_ticks: int
    python: str
    agent: str
    """The digest of the agent's archive, from which it has its modules."""

    modules: List[str]
    """What it has imported for workers."""

    key: str
    """The same for servers that can take one another's place."""

    since: float
    until: float
    """In unix seconds: when it was left, and when it ends unless a run uses it before."""

    runs: int
    """How many have used it since."""


def directory(*, make: bool = False) -> Optional[str]:
    """The directory of this user; None if there is none, or if another user has access to it."""
    name = f"distlaunch-warm-{os.getuid()}-{os.stat('/proc/self/ns/pid').st_ino}"
    named = os.environ.get(DIRECTORY)
    for place in [named] if named else _PLACES:
        path = os.path.join(place, name)
        with contextlib.suppress(OSError):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
            about = os.lstat(path)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not stat.S_IMODE(about.st_mode) & 0o077:
                return path
    return None


def socket_of(where: str, pid: int, ticks: int) -> str:
    """The path of a server's socket."""
    return os.path.join(where, f"{pid}-{ticks}.sock")


def write(where: str, standing: Standing) -> None:
    """Write a server's record; raises `OSError`."""
    path = _record(where, standing.pid, standing.start_ticks)
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(json.dumps(standing._asdict()).encode())
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read(where: str, pid: int, ticks: int) -> Optional[Standing]:
    """A server's record; None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError), open(_record(where, pid, ticks), "rb") as file:
        return Standing(**json.loads(file.read()))
    return None


def found() -> List[Standing]:
    """All servers that stand, the last one left first; files of others are removed."""
    where = directory()
    standing: List[Standing] = []
    for name in os.listdir(where) if where else []:
        assert where
        pid, _, rest = name.partition("-")
        ticks = rest.partition(".")[0]
        if not (pid.isdigit() and ticks.isdigit()):
            continue
        if processes.start_ticks(int(pid)) != int(ticks):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(where, name))
        elif name.endswith(".json"):
            record = read(where, int(pid), int(ticks))
            standing += [record] if record else []
    return sorted(standing, key=lambda each: -each.since)


def listed(*, end_all: bool = False) -> List[Json]:
    """All servers that stand, as commands show them; `end_all`: those that stood until now."""
    shown = [({**each._asdict(), "memory_bytes": _memory(each.pid)}, each) for each in found()]
    hidden = ("start_ticks", "agent", "key")
    return [
        {name: value for name, value in about.items() if name not in hidden}
        for about, each in shown
        if not end_all or end(each)
    ]


def end(standing: Standing) -> bool:
    """End a server, and wait until it has; whether it stood until now. Runs that have used it are not affected.

    It has nothing to do at its end, and may be stopped.
    """
    ended = False
    with contextlib.suppress(OSError):
        if processes.start_ticks(standing.pid) == standing.start_ticks:
            os.kill(standing.pid, signal.SIGKILL)
            ended = True
    limit = time.monotonic() + _ENDS_S
    while processes.start_ticks(standing.pid) == standing.start_ticks and time.monotonic() < limit:
        time.sleep(0.005)
    if where := directory():
        forget(where, standing.pid, standing.start_ticks)
    return ended


def forget(where: str, pid: int, ticks: int) -> None:
    """Remove a server's files."""
    for path in (socket_of(where, pid, ticks), _record(where, pid, ticks)):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _memory(pid: int) -> Optional[int]:
    """The memory that the process shares with no other one, and its part of what it does."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        return 1024 * int(next(line.split()[1] for line in file if line.startswith(b"Pss:")))
    return None


def _record(where: str, pid: int, ticks: int) -> str:
    return os.path.join(where, f"{pid}-{ticks}.json")
