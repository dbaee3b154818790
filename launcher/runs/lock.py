"""A lock in a run's directory, so that one command at a time changes the run, on whatever host.

The lock is a file that is created exclusively. This works on NFS since version 3, even with `nolock`, and on object
store mounts. Locks of fcntl and flock may silently be local to each host there.

`lock-N` with the highest N counts. To take the lock from an owner that released it or has exited, a process creates
`lock-(N+1)`: of two that try, only one succeeds. A lock that may be held is never removed or replaced, so at no moment
do two processes hold it. An owner on this host has exited if there is no such process; an owner on another host, if it
has not renewed its lock for longer than a network file system's cache can account for. A command that changes the run
waits for that. A look takes the lock only if it can have it at once, keeps it for moments, and notes what it has seen
of the owner: the looks of a host together wait as one command would.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import RequestError, StorageError
from launcher.runs import renewal, sightings
from launcher.system import numbers, storage
from launcher.system.dataclass import asdict, dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SILENT_S = 90.0
"""Longer than a network file system caches a directory (`acdirmax`, 60 s)."""

_LOOK_S = 0.1
_PATIENCE_S = 2.0
_LOOK = "status"
"""What a look at a run does, as the owner of its lock."""

_LOOK_TAKES_S = 10.0
"""A look keeps the lock for a few notes, so every command can wait for that."""

_held: ContextVar[frozenset[str]] = ContextVar("held", default=frozenset())
"""The directories that this thread holds, or the one whose context it has: others of the process may hold more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lock."""

    doing: str
    """The command."""

    submits: bool
    """It starts the run's agents: while it runs, the run is being submitted."""

    host: str
    pid: int
    start_ticks: int | None
    machine: str
    """The host's boot id, and the PID namespace of `pid`."""

    renewed: float
    """Unix seconds."""

    @property
    def is_this(self) -> bool:
        """Whether it is this process."""
        return (self.pid, self.machine) == (os.getpid(), _machine())

    def __str__(self) -> str:
        return f"`distlaunch {self.doing}`, process {self.pid} on {self.host}"

    @property
    def gone(self) -> bool | None:
        """Whether the process has exited; None: it is on another host, where we cannot see it."""
        if self.machine != _machine():
            return None
        return _ticks(self.pid) != self.start_ticks

    @property
    def seems_gone(self) -> bool:
        """`gone`, or silent for long by the clocks: good enough for a message, but not to take over the lock."""
        gone = self.gone
        return time.time() - self.renewed > _SILENT_S if gone is None else gone


def owner(directory: Path) -> Owner | None:
    """The owner of a run directory's lock, even if it has died; None if the lock is free."""
    number = _latest(directory)
    found = _owner(_read(directory, number))
    return None if found is None else _by_the_disk(directory, number, found)


def _by_the_disk(directory: Path, number: int, found: Owner) -> Owner:
    """The owner with the age of its lock as the disk has it: the clocks of two hosts may differ."""
    if found.gone is not None or abs(time.time() - found.renewed) <= _SILENT_S:
        return found
    import tempfile  # few owners are silent

    with suppress(OSError), tempfile.TemporaryFile(dir=directory) as file:
        age_s = os.fstat(file.fileno()).st_mtime - _path(directory, number).stat().st_mtime
        return replace(found, renewed=time.time() - age_s)
    return found


@contextmanager
def at_once(directory: Path) -> Iterator[bool]:
    """Hold the lock for moments, if no live process has it and there is room for one. Gives whether it is held."""
    about, taken = _this(_LOOK, submits=False), False
    number = _latest(directory) + 1 if os.path.isdir(directory) else 0  # the run may have been removed
    if number and _seems_free(directory, number - 1):
        with suppress(StorageError):
            taken = _take(directory, number, about)
    with _kept(directory, number, about) if taken else nullcontext():
        yield taken


def _seems_free(directory: Path, number: int) -> bool:
    """Whether the lock can be taken now. If its owner can only have died, what this look sees of it is noted."""
    sight = _sight(directory, number)
    holder = _owner(sight.content)
    if _is_free(sight, holder):
        return True
    if holder is not None and (holder.gone is False or not _by_the_disk(directory, number, holder).seems_gone):
        return False
    if not sight.changed:  # it could not be read, which tells nothing
        return False
    since = sightings.since(directory, _machine(), sight.noted)
    if since is None:
        sightings.note(directory, _machine(), sight.noted)
        return False
    return time.monotonic() - since > _SILENT_S


def other(directory: Path) -> Owner | None:
    """The owner, if it lives and is not the caller: another process, or another thread of this one."""
    found = owner(directory)
    if found is None or (found.is_this and os.path.realpath(directory) in _held.get()) or found.seems_gone:
        return None
    return found


@contextmanager
def hold(
    directory: Path, doing: str, *, submits: bool = False, wait_s: float = 0.0, watch: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock. Raises `RequestError` with the owner's name if a live owner keeps it for longer than `wait_s`.

    A look, which has it for moments only, is always waited for. `watch` is called every second meanwhile, in another
    thread.
    """
    about = _this(doing, submits=submits)
    with _kept(directory, _acquire(directory, about, wait_s), about, watch):
        yield


def _this(doing: str, *, submits: bool) -> Owner:
    """This process, as an owner."""
    return Owner(
        doing=doing, submits=submits, host=os.uname().nodename, pid=os.getpid(), start_ticks=_ticks(os.getpid()),
        machine=_machine(), renewed=time.time(),
    )  # fmt: skip


@contextmanager
def _kept(directory: Path, number: int, about: Owner, watch: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep the lock of that number, which was taken, until the block's end."""
    real = os.path.realpath(directory)
    with renewal.renewed(_path(directory, number), asdict(about), watch):
        _held.set(_held.get() | {real})
        try:
            yield
        finally:
            _held.set(_held.get() - {real})


def _acquire(directory: Path, about: Owner, wait_s: float) -> int:
    began = since = time.monotonic()
    seen: _Sight | None = None
    renewed = told = False
    while True:
        sight = _sight(directory, _latest(directory))
        number, holder, now = sight.number, _owner(sight.content), time.monotonic()
        if seen != sight:
            renewed = seen is not None and seen.number == number
            since = _seen_since(directory, sight, now) if seen is None else now
            seen = sight
        if _is_free(sight, holder) or now - since > _SILENT_S:
            if _take(directory, number + 1, about):
                return number + 1
            time.sleep(_LOOK_S)  # taken by a process that a network file system may not show yet
            continue
        lives = renewed or (holder is not None and holder.gone is False)
        looks = holder is not None and holder.doing == _LOOK
        if lives and now - began >= (max(wait_s, _LOOK_TAKES_S) if looks else wait_s):
            raise RequestError(
                f"{directory.name} is being changed by {holder or 'another command'}",
                hint="wait for it, or end that process",
            )
        if not told and now - began > _PATIENCE_S:
            told = True
            output.note(f"waiting for {holder or 'another command'} to release {directory.name}")
        time.sleep(_LOOK_S)


def _seen_since(directory: Path, sight: _Sight, now: float) -> float:
    """Since when this host has seen the lock so; the looks at the run count."""
    noted = sightings.since(directory, _machine(), sight.noted) if sight.changed else None
    return now if noted is None else noted


class _Sight(NamedTuple):
    """What a lock looks like: renewed, it looks different."""

    number: int
    content: bytes
    changed: float

    @property
    def noted(self) -> list[object]:
        """The same for a note."""
        return [self.number, self.content.decode("ascii", "replace"), self.changed]


def _sight(directory: Path, number: int) -> _Sight:
    return _Sight(number, _read(directory, number), _changed(directory, number))


def _is_free(sight: _Sight, holder: Owner | None) -> bool:
    return not sight.number or sight.content == renewal.FREE or (holder is not None and holder.gone is True)


def _take(directory: Path, number: int, about: Owner) -> bool:
    """Create the lock with that number. Returns whether it counts: there must be no higher one."""
    path = _path(directory, number)
    if not storage.write_once(path, json.dumps(asdict(about)).encode("ascii"), mode=0o600):
        return False
    try:
        known = _numbers(directory)
    except StorageError:  # it would be this process's for as long as that lives
        with suppress(OSError):
            path.unlink()
        raise
    mine = max(known, default=0) == number
    for old in known if mine else [number]:
        if old < number or not mine:
            with suppress(OSError):
                _path(directory, old).unlink()
    if mine:
        sightings.forget(directory)
    return mine


def _owner(content: bytes) -> Owner | None:
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _read(directory: Path, number: int) -> bytes:
    with suppress(OSError):
        return _path(directory, number).read_bytes()
    return b""


def _changed(directory: Path, number: int) -> float:
    with suppress(OSError):
        return _path(directory, number).stat().st_mtime
    return 0.0


def _latest(directory: Path) -> int:
    return max(_numbers(directory), default=0)


def _numbers(directory: Path) -> list[int]:
    with storage.storage_errors(directory):
        names = [name.rpartition("-") for name in os.listdir(directory)]
    return [int(number) for kind, _, number in names if kind == "lock" and numbers.is_index(number)]


def _path(directory: Path, number: int) -> Path:
    return directory / f"lock-{number}"


def _machine() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return os.uname().nodename


def _ticks(pid: int) -> int | None:
    # Imported here: checking a lock that is free or held on another host needs no ctypes.
    from launcher.agent.system.processes import start_ticks

    return start_ticks(pid)
