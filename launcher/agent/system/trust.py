"""The rule by which a path is trusted for reading code or settings, on this machine and on remote hosts.

No other user may be able to change it: the path, each directory on the way to it and each link belong to us or to
root, and others cannot write there. A sticky directory (/tmp) may be on the way, as its entries belong to their owners.
A group may write if it is the user's own (umask 002) or trusted. `trusted` lists exceptions: `@GROUP`, or a directory
with all its contents, which applies once the way has reached the directory itself, not to another user's link to it.

This file is sent to hosts that have no agent yet, so it imports no other file of the package.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Iterable, Iterator, List, Optional, Sequence, Tuple

_LINKS = 40
_SUFFIX = ".pyz"
_BLOCK = 1 << 16
WHOLE_NS = 20_011_000
"""An agent's file whose content is known to match its name has a time with this fraction of a second.

To write to the file gives it another one. A file system with coarser times has none, so the file is read each time.
"""


class Problem:
    """Why a path is not trusted, and how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        self.message, self.hint = message, hint


def problem(
    path: str, trusted: Sequence[str] = (), *, searched: bool = False, opened: Optional[os.stat_result] = None
) -> Optional[Problem]:
    """What is wrong with the path, or with the part of the way to it that exists; None: nothing.

    `searched`: files are looked up by name in this directory, so no other user may create any, even if it is sticky.
    `opened`: the stat result of the file that was opened by that name, which must be the file that the path leads to.
    """
    places = [place for place in map(_place, trusted) if place]
    about = None
    try:
        for step, about, last in _steps(path):
            excepted = any(f"{step}/".startswith(f"{place.rstrip('/')}/") for place in places)
            found = None if excepted else _wrong(step, about, trusted, last=last, searched=searched)
            if found is not None:
                return found
    except (FileNotFoundError, NotADirectoryError):  # its reader reports that
        about = None
    except OSError as error:
        return Problem(f"{error.filename}: {error.strerror}", f"ls -ld {error.filename}")
    if opened is not None and (about is None or not os.path.samestat(about, opened)):
        return Problem(f"{path} was changed while it was opened", f"ls -ld {path}")
    return None


def make(directory: str, mode: int = 0o700, trusted: Sequence[str] = ()) -> Optional[Problem]:
    """Create the directory and its parents; whatever the umask, others cannot write to any of them.

    If another user creates one of them first, nothing is created in it, and what is wrong with it is returned.
    """
    missing: List[str] = []
    directory = os.path.abspath(directory)
    here = directory
    while not os.path.isdir(here):
        missing.append(here)
        here = os.path.dirname(here)
    for each in reversed(missing):
        found = problem(os.path.dirname(each), trusted)
        if found is not None:
            return found
        try:
            os.mkdir(each, mode)
        except FileExistsError:  # another process was faster
            if not os.path.isdir(each):
                raise
        else:
            os.chmod(each, mode | (os.stat(each).st_mode & stat.S_ISGID))
    return problem(directory, trusted)


def _parts(path: str) -> List[str]:
    """The components in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _steps(path: str) -> Iterator[Tuple[str, os.stat_result, bool]]:
    """Each directory, link and file on the way to the path, its stat result, and whether it is the path's end.

    The part before a step contains no links, so that a step is named by its real location.
    """
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    here, ahead, links = "/", _parts(path), 0
    yield here, os.lstat(here), not ahead
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        about = os.lstat(step)
        is_link = stat.S_ISLNK(about.st_mode)
        yield step, about, not ahead and not is_link
        if not is_link:
            here = step
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, "too many links", path)
        link = os.readlink(step)
        here = "/" if link.startswith("/") else here
        ahead += _parts(link)


def _place(word: str) -> Optional[str]:
    """The real path of a trusted directory; None for a group, and if another user's link is on the way."""
    if word.startswith("@"):
        return None
    directory = os.path.expanduser(word)
    try:
        links = [about.st_uid for _, about, _ in _steps(directory) if stat.S_ISLNK(about.st_mode)]
        return os.path.realpath(directory) if set(links) <= {0, os.getuid()} else None
    except OSError:
        return None


def _wrong(
    step: str, about: os.stat_result, trusted: Sequence[str], *, last: bool, searched: bool
) -> Optional[Problem]:
    """What is wrong with this one entry."""
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid not in (0, os.getuid()) and (last or not _is_unmapped_root(about.st_uid)):
        more = "name what it leads to" if stat.S_ISLNK(about.st_mode) else f"if you trust them: DISTLAUNCH_TRUST={step}"
        return Problem(
            f"{step} belongs to {_user(about.st_uid)} (mode {mode:04o})", f"use a path of your own, or, {more}"
        )
    sticky = stat.S_ISDIR(about.st_mode) and mode & stat.S_ISVTX and not (last and searched)
    if sticky or not (stat.S_ISDIR(about.st_mode) or (last and stat.S_ISREG(about.st_mode))):
        return None  # sticky, a link, or never read
    others = bool(mode & stat.S_IWOTH)
    if not others and (not mode & stat.S_IWGRP or _may_write(step, about.st_gid, trusted)):
        return None
    whose = f"{step} belongs to {_user(about.st_uid)}, and its mode {mode:04o} lets"
    if others:
        return Problem(f"{whose} all users write to it", f"chmod o-w {step}")
    group = _group(about.st_gid)
    return Problem(
        f"{whose} the group {group} write to it",
        f"chmod g-w {step}, or, if you trust all of that group: DISTLAUNCH_TRUST=@{group}",
    )


def _may_write(step: str, gid: int, trusted: Sequence[str]) -> bool:
    """Whether the group is trusted, or has no other members: by custom, the group named after its user, or root's."""
    import grp

    if f"@{_group(gid)}" in trusted:
        return True
    try:
        if os.getxattr(step, "system.posix_acl_access", follow_symlinks=False):
            return False  # the group bits are then the mask for all entries of the list
    except (OSError, AttributeError):  # no access control list, or not Linux
        pass
    me = _user(os.getuid())
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == os.getuid()
    return (gid == 0 or group.gr_name == me) and set(group.gr_mem) <= {me, "root"}


def _is_unmapped_root(uid: int) -> bool:
    """Whether it may be root, which is not mapped in a container's user namespace."""
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            if uid != int(file.read()):
                return False
        with open("/proc/self/uid_map", "rb") as file:
            return all(int(line.split()[1]) > 0 for line in file)
    except (OSError, ValueError):
        return False


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# -- agents -----------------------------------------------------------------------------------------------------------


def agent_name(archive: bytes) -> str:
    """The name of an agent's file: the digest of its content."""
    return _digest([archive])


def _name(file: BinaryIO) -> str:
    """What an agent's file must be called."""
    return _digest(iter(lambda: file.read(_BLOCK), b"")) + _SUFFIX


def _digest(content: Iterable[bytes]) -> str:
    import hashlib

    found = hashlib.sha256()
    for block in content:
        found.update(block)
    return found.hexdigest()[:32]


def agent_problem(path: str, trusted: Sequence[str] = ()) -> Optional[Problem]:
    """Why the agent in that file must not be run: others could change it, or it does not match its name."""
    found = problem(os.path.dirname(path), trusted, searched=True) or problem(path, trusted)
    if found is not None:
        return found
    changed = Problem(f"{path} does not match its name: another user or a disk error has changed it", f"rm -r {path}")
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            is_whole = about.st_mtime_ns % 10**9 == WHOLE_NS and not trusted  # by others, who may set the time
            right = stat.S_ISREG(about.st_mode) and (is_whole or _name(file) == os.path.basename(path))
    except OSError:
        right = False
    return None if right else changed
