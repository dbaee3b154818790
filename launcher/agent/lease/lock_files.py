"""Lock files that all users of a host share, in a directory from which no one can remove another user's files.

A lock (`flock`) belongs to an open file: children that inherit the descriptor have it, too, and it ends with the last
process that has. The files stay, as removing one that another process is about to lock would split the lock in two.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ..system import users

PLACES = ("/run/lock", "/dev/shm", "/tmp")  # noqa: S108 - files there are checked, and never replaced
"""Local to the host and emptied at its start; the first that fits is used, the same for all users."""

_MUTEX_S = 20.0
_POLL_S = 0.02
_NOTE_BYTES = 2048
_umask = threading.Lock()
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class LeaseError(Exception):
    """No lease can be taken or looked at on this host; the message is for the user."""


def directory(places: Sequence[str] = PLACES) -> str:
    """Where the lock files are: a sticky directory of root's in which every user can create files."""
    wrong = []
    for place in places:
        try:
            about = os.stat(place)
        except OSError as error:
            wrong.append(f"{place}: {error.strerror}")
            continue
        mode = stat.S_IMODE(about.st_mode)
        if stat.S_ISDIR(about.st_mode) and about.st_uid == 0 and mode & 0o1777 == 0o1777:
            return place
        wrong.append(f"{place} belongs to user {about.st_uid}, mode {mode:04o}")
    raise LeaseError(
        f"no directory for leases: {'; '.join(wrong)}; root has to give one of them mode 1777: chmod 1777 DIRECTORY"
    )


class LockFiles:
    """The lock files of this host, which a network namespace identifies, as in the preflight."""

    def __init__(self, where: Optional[str] = None) -> None:
        self._directory = where or directory()
        self._prefix = f"distlaunch-lease-{os.stat('/proc/self/ns/net').st_ino}-"

    def path(self, name: str) -> str:
        """The path of the file with this short name."""
        return os.path.join(self._directory, self._prefix + name)

    def names(self, start: str) -> List[str]:
        """The short names of existing files that start like this, sorted."""
        start = self._prefix + start
        found = [name for name in os.listdir(self._directory) if name.startswith(start)]
        return sorted(name[len(self._prefix) :] for name in found)

    def locked(self, name: str, *, shared: bool = False) -> Optional[int]:
        """Lock the file, which is created if it is missing; its descriptor, or None if another process has it."""
        path, how = self.path(name), fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            fd = _opened(path)
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except FileNotFoundError:
                pass
            os.close(fd)  # the file was removed meanwhile

    def is_locked(self, name: str) -> bool:
        """Whether a process has the exclusive lock; call it with the mutex, as the test itself takes a lock."""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path(name), os.O_RDONLY | _OPEN)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
        return False

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """Exclude all other processes that take leases or look at them; each has it only for a moment."""
        limit = time.monotonic() + _MUTEX_S
        fd = self.locked("mutex")
        while fd is None:
            if time.monotonic() > limit:
                raise LeaseError(
                    f"another process has locked {self.path('mutex')} for {_MUTEX_S:.0f} s: see which one with "
                    f"`fuser -v {self.path('mutex')}`, and end it"
                )
            time.sleep(_POLL_S)
            fd = self.locked("mutex")
        try:
            yield
        finally:
            os.close(fd)

    def note(self, name: str) -> Dict[str, Any]:
        """What the holder has written about itself; empty if that cannot be read. Any user may have written it."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            fd = os.open(self.path(name), os.O_RDONLY | _OPEN)
            try:
                found = json.loads(os.pread(fd, _NOTE_BYTES, 0))
            finally:
                os.close(fd)
            if isinstance(found, dict):
                return found
        return {}

    def create(self, name: str, about: Dict[str, Any]) -> int:
        """Create a file of our own, locked; call it with the mutex, with a name that does not exist."""
        fd = _created(self.path(name))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_note(fd, about)
        return fd

    def remove(self, name: str) -> None:
        """Remove a file of our own; one of another user stays."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(name))


def write_note(fd: int, about: Dict[str, Any]) -> None:
    """Write about the holder into its locked file, in one piece."""
    data = json.dumps(about).encode("ascii")
    if len(data) <= _NOTE_BYTES:
        os.pwrite(fd, data.ljust(_NOTE_BYTES), 0)


def _opened(path: str) -> int:
    """Open the file for all users. With O_CREAT, fs.protected_regular would forbid another user's file."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | _OPEN)
        except FileNotFoundError:
            fd = _created(path)
        except OSError as error:
            raise _unsafe(path, os.strerror(error.errno or 0)) from error
        if fd >= 0:
            break
    about = os.fstat(fd)
    wrong = ""
    if not stat.S_ISREG(about.st_mode):
        wrong = "it is not a regular file"
    elif about.st_nlink > 1:
        wrong = "it has a second name (hard link)"
    elif about.st_mode & 0o666 != 0o666:
        wrong = f"its mode {stat.S_IMODE(about.st_mode):04o} keeps other users out"
    if wrong:
        os.close(fd)
        raise _unsafe(path, wrong)
    return fd


def _created(path: str) -> int:
    """Create the file so that no other user finds it shut; -1 if another process was faster."""
    with _umask:  # all threads have the same one: two that set and restore it at once could leave it at 0
        umask = os.umask(0)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666)
        except FileExistsError:
            return -1
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise _unsafe(path, os.strerror(error.errno or 0)) from error
        finally:
            os.umask(umask)


def _unsafe(path: str, why: str) -> LeaseError:
    owner = ""
    with contextlib.suppress(OSError, ImportError):
        owner = f" of user {re.sub('[^ -~]', '?', users.name_of(os.lstat(path).st_uid))}"
    return LeaseError(f"the lock file {path}{owner} cannot be used: {why}; its owner has to remove it: rm {path}")
