"""One command at a time changes a run: a lock in its directory that holds between all hosts that share it, and outlives no owner.

The lock is a file that one alone can create, which NFS has had since version 3, with `nolock`, too, and mounts of object
stores have. Locks of fcntl and flock are kept on one machine only there, and nobody is told.

`lock-N` with the highest N counts. To take the lock over, from an owner that let it go or is gone, is to create `lock-(N+1)`:
of two who try, one can. Nobody removes or replaces a lock that somebody may hold, so there is no moment in which two have it.
An owner on this machine is gone when there is no such process; one on another machine, when it has not renewed its lock for
so long that no cache of a network file system can be the reason.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.system import files
from launcher.errors import RequestError
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_RENEW_S = 5.0
_SILENT_S = 90.0
"""Longer than a network file system shows an old directory (`acdirmax`, 60 s)."""

_LOOK_S = 0.1
_PATIENCE_S = 2.0
_FREE = b"{}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a lock."""

    doing: str
    """The command."""

    submits: bool
    """It starts the run's agents: as long as it is there, the run is being submitted."""

    host: str
    pid: int
    start_ticks: int | None
    machine: str
    """The machine's boot and the namespace in which `pid` means something."""

    renewed: float
    """Unix seconds."""

    def __str__(self) -> str:
        return f"`distlaunch {self.doing}`, process {self.pid} on {self.host}"

    @property
    def gone(self) -> bool | None:
        """Whether it has ended; None: it is on another machine, where we cannot see it."""
        if self.machine != _machine():
            return None
        return _ticks(self.pid) != self.start_ticks

    @property
    def seems_gone(self) -> bool:
        """`gone`, or by the clocks silent for long: good enough for telling a person, not for taking its lock."""
        gone = self.gone
        return time.time() - self.renewed > _SILENT_S if gone is None else gone


def owner(directory: Path) -> Owner | None:
    """Who holds the lock of a run's directory, or held it when it died."""
    return _owner(_read(directory, _latest(directory)))


@contextmanager
def hold(
    directory: Path, doing: str, *, submits: bool = False, wait_s: float = 0.0, watch: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock; raises `RequestError` naming the owner where that goes on for longer than `wait_s`.

    `watch` is called every second meanwhile, in another thread.
    """
    about = Owner(
        doing=doing, submits=submits, host=os.uname().nodename, pid=os.getpid(), start_ticks=_ticks(os.getpid()),
        machine=_machine(), renewed=time.time(),
    )  # fmt: skip
    number = _acquire(directory, about, wait_s)
    path, over = _path(directory, number), threading.Event()

    def free() -> None:
        with suppress(OSError):
            files.write_whole(str(path), _FREE, 0o600, sync=False)

    def renew() -> None:
        next_s = time.monotonic() + _RENEW_S
        while not over.wait(min(1.0, _RENEW_S)):
            watch()
            if time.monotonic() > next_s:
                next_s = time.monotonic() + _RENEW_S
                with suppress(OSError):  # a full disk; whoever wants the lock has to wait long before that matters
                    _write(path, {**asdict(about), "renewed": time.time()})
                if over.is_set():  # it was let go of while this was written
                    free()

    thread = threading.Thread(target=renew, name="renew-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)  # a disk that is stuck is no reason to be
        free()


def _acquire(directory: Path, about: Owner, wait_s: float) -> int:
    began = since = time.monotonic()
    seen: tuple[int, bytes] | None = None
    renewed = told = False
    while True:
        number = _latest(directory)
        content = _read(directory, number)
        holder, now = _owner(content), time.monotonic()
        if seen != (number, content):
            renewed = seen is not None and seen[0] == number
            seen, since = (number, content), now
        free = not number or content == _FREE or (holder is not None and holder.gone is True)
        if free or now - since > _SILENT_S:
            if _take(directory, number + 1, about):
                return number + 1
            time.sleep(_LOOK_S)  # somebody has it, whom the cache of a network file system may not show yet
            continue
        lives = renewed or (holder is not None and holder.gone is False)
        if lives and now - began >= wait_s:
            raise RequestError(
                f"{directory.name} is being changed by {holder or 'another command'}", hint="wait for it, or end that process"
            )
        if not told and now - began > _PATIENCE_S:
            told = True
            output.note(f"waiting for {holder or 'another command'} to release {directory.name}")
        time.sleep(_LOOK_S)


def _take(directory: Path, number: int, about: Owner) -> bool:
    """Create the lock of that number; it counts if there is no higher one."""
    path = _path(directory, number)
    if not storage.write_once(path, json.dumps(asdict(about)).encode("ascii"), mode=0o600):
        return False
    mine = _latest(directory) == number
    for old in _numbers(directory) if mine else [number]:
        if old < number or not mine:
            with suppress(OSError):
                _path(directory, old).unlink()
    return mine


def _owner(content: bytes) -> Owner | None:
    try:
        values = json.loads(content)
        return Owner(**values)
    except (ValueError, TypeError):
        return None


def _read(directory: Path, number: int) -> bytes:
    with suppress(OSError):
        return _path(directory, number).read_bytes()
    return b""


def _write(path: Path, about: object) -> None:
    files.write_whole(str(path), json.dumps(about).encode("ascii"), 0o600, sync=False)


def _latest(directory: Path) -> int:
    return max(_numbers(directory), default=0)


def _numbers(directory: Path) -> list[int]:
    with storage.storage_errors(directory):
        names = [name.rpartition("-") for name in os.listdir(directory)]
    return [int(number) for kind, _, number in names if kind == "lock" and number.isdigit()]


def _path(directory: Path, number: int) -> Path:
    return directory / f"lock-{number}"


def _machine() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return os.uname().nodename


def _ticks(pid: int) -> int | None:
    # Imported here: who only looks whether a lock is held by another machine, or by nobody, needs no ctypes.
    from launcher.agent.system.processes import start_ticks

    return start_ticks(pid)
