"""The user's files on a host reached over SSH: sent once, identified by their content, and copied for each run."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Tuple

from ..outputs import project

if TYPE_CHECKING:
    from ..job import Job

_SOONER = 0.9
"""Of the time that the start may take, in which others have copied the files: the launcher hears why it failed."""

_OLD_S = 14 * 86400
Request = Dict[str, Any]


class HostError(Exception):
    """A call failed on this host; the message is for the user."""


class Rest:
    """A number of bytes of stdin, as a file."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = sys.stdin.buffer.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def skip(self) -> None:
        """Read all of it."""
        while self.read(1 << 20):
            pass


def unpack(request: Request) -> Request:
    """Unpack the tar that follows the request on stdin as the snapshot of that digest, which appears when complete."""
    import shutil
    import tarfile

    base = os.path.expanduser(request["dir"])
    target = os.path.join(base, "snapshots", request["digest"])
    temporary = f"{target}.{os.getpid()}.new"
    source = Rest(request["bytes"])
    try:
        os.makedirs(temporary, mode=0o700)
        with tarfile.open(fileobj=source, mode="r|*") as tar:  # type: ignore[call-overload]  # only `read` is needed
            if hasattr(tarfile, "tar_filter"):  # Python 3.12 and security releases of older ones
                tar.extractall(temporary, filter="tar")
            else:
                tar.extractall(temporary)  # noqa: S202 - packed by our own launcher
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(temporary, target)
    except (tarfile.TarError, EOFError) as error:
        raise HostError(f"the files did not arrive whole: {error}") from error
    finally:
        source.skip()
        shutil.rmtree(temporary, ignore_errors=True)
    _forget_old(os.path.join(base, "snapshots"))
    return {"unpacked": target}


def _forget_old(directory: str) -> None:
    """Remove snapshots that no run has used for two weeks."""
    import shutil

    for entry in list(os.scandir(directory)):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _OLD_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def working_directory(request: Request) -> Tuple[str, List[str]]:
    """Where the workers run: the project's directory, this run's own copy of the snapshot, or one that exists.

    Also what the user should know about it.
    """
    if not request.get("digest"):
        return str(request["cwd"]), []
    work, notes = os.path.join(request["directory"], "work"), list[str]()
    snapshot = os.path.join(os.path.expanduser(request["dir"]), "snapshots", request["digest"])
    limit_s = _SOONER * request["timeout_s"]
    limit = time.monotonic() + limit_s
    if request["job"].get("project") and request["copies"]:
        notes = _in_project(request, snapshot, work)
    while not os.path.isdir(work):
        if request["copies"]:
            copy = f"{work}.{os.getpid()}.new"
            _copy(snapshot, request["digest"], copy)
            os.rename(copy, work)
        elif time.monotonic() > limit:
            raise HostError(
                f"{work} has not appeared in {limit_s:.0f} s: is this disk really shared? set distlaunch_shared: false"
            )
        else:
            time.sleep(0.02)
    return os.path.realpath(work), notes


def in_volume(files: str, directory: str, job: Job, node: int) -> project.Prepared:
    """Lay the files over those of the project's directory on a volume, which several nodes may do at once."""
    import shutil

    os.makedirs(directory, mode=0o700, exist_ok=True)
    sent = f"{directory}/sent-{job.run}-{node}"
    shutil.rmtree(sent, ignore_errors=True)  # of a pod that was killed
    own = project.own_in_volume(directory, job.run)
    if os.path.isdir(own):  # from an earlier start, or of another node
        return project.Prepared(own, [])
    if os.path.isdir(files):
        shutil.copytree(files, sent, symlinks=True)
    else:
        os.makedirs(sent)
    entries = list(_entries(sent))
    return project.prepare(directory, job.run, node, combined(entries), sent, entries, own)


def _in_project(request: Request, snapshot: str, work: str) -> List[str]:
    """Make `work` a link to the project's directory with the files that were sent, or if that is used a directory."""
    name, run = request["job"]["project"], request["job"]["run"]
    directory = os.path.join(os.path.expanduser(request["dir"]), "projects", name)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.path.isdir(work) and not os.path.islink(work):
        return []  # its own, from an earlier attempt
    if os.path.isdir(work) and not os.path.isdir(snapshot):
        project.touch(directory, run, int(request["node_rank"]))
        return ["the files that were sent are not kept any more, so it starts with those that are there"]
    sent = f"{directory}/sent-{run}-{os.getpid()}"
    entries = _copy(snapshot, request["digest"], sent)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(work)
    made = project.prepare(directory, run, int(request["node_rank"]), request["digest"], sent, entries, work)
    if made.work != work:
        os.symlink(os.path.relpath(made.work, os.path.dirname(work)), work)
    return made.notes


def _copy(snapshot: str, digest: str, temporary: str) -> List[Tuple[str, str, str, str]]:
    """Copy the files and check that they are those that were sent; no other user can change the copy."""
    import shutil

    shutil.copytree(snapshot, temporary, symlinks=True)
    entries = list(_entries(temporary))
    if combined(entries) != digest:
        for directory in (temporary, snapshot):
            shutil.rmtree(directory, ignore_errors=True)
        raise HostError(
            f"{snapshot} is not what was sent: another user or a disk error has changed it; it was removed, start again"
        )
    os.utime(snapshot)
    return entries


def _entries(top: str) -> Iterable[Tuple[str, str, str, str]]:
    """All files and links of a directory, in the form that `combined` takes."""
    for directory, directories, names in os.walk(top):
        for path in [os.path.join(directory, name) for name in (*directories, *names)]:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                yield os.path.relpath(path, top), "link", os.readlink(path), ""
            elif not stat.S_ISDIR(mode):
                yield os.path.relpath(path, top), "755" if mode & 0o100 else "644", "", project.hash_of(path)


def combined(entries: Iterable[Tuple[str, str, str, str]]) -> str:
    """One digest of all files: of each its path, its mode or `link`, the link's target, and its content's SHA-256."""
    import hashlib

    # Encoded as in a tar, independent of the host's own encoding of file names.
    fields = sorted([word.encode("utf-8", "surrogateescape") for word in entry] for entry in entries)
    return hashlib.sha256(b"".join(b"\0".join(entry) + b"\0\n" for entry in fields)).hexdigest()
