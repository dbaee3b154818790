"""A node's store of environments, on its local disk: files by their content, and environments made of links to them.

    objects/AB/DIGEST[.x]     a file's content; `.x`: executable
    envs/DIGEST/              an environment; DIGEST.json next to it once it is complete, DIGEST.lock while it is used
    envs/DIGEST/originals/    the contents of files that name their place, so that they differ in it
    lists/                    what is known of environments that were listed here
    unpacked/                 packed environments while they are read

What no run has used for longest is removed once all of it is larger than the quota; before that, what a start that was
killed has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from typing import Iterator, List, Tuple

from ..named_tuple import NamedTuple
from ..system import files, trust, users
from . import disks
from .manifest import STAMP_S, BringError, File, Manifest

ORIGINALS = "originals"
_DONE, _LOCK, _NEW = ".json", ".lock", ".new"


def default_directory() -> str:
    """Where a node keeps environments by default."""
    return f"/var/tmp/distlaunch-{users.name_of(os.getuid())}"  # noqa: S108 - private to us


class Store:
    """The store in one directory, which only its user may write to."""

    def __init__(self, directory: str) -> None:
        """Create it where it is missing. Raises `BringError` if others could change it, or on a shared disk."""
        self.directory = os.path.abspath(os.path.expandvars(os.path.expanduser(directory)))
        if "$" in self.directory:
            raise BringError(f"--env-ship-dir {directory}: this node has no such variable")
        try:
            for each in (
                self.directory,
                *(os.path.join(self.directory, name) for name in ("objects", "envs", "lists", "unpacked")),
            ):
                found = trust.make(each)
                if found is not None:
                    raise BringError(f"no environment is brought to {each}: {found.message} ({found.hint})")
        except OSError as error:
            raise BringError(f"{self.directory} cannot be made: {error.strerror}") from error
        kind = disks.kind_of(os.path.realpath(self.directory))
        if kind:
            raise BringError(f"{self.directory} is on a shared disk ({kind}): --env-ship-dir DIR names a local one")

    # -- content ------------------------------------------------------------------------------------------------------

    def object(self, file: File) -> str:
        """The path of the file's content, whether it is there or not."""
        name = file.name
        return os.path.join(self.directory, "objects", name[:2], name[2:] + ".x" * file.executable)

    def has(self, file: File) -> bool:
        """Whether the content is there, whole."""
        try:
            return os.lstat(self.object(file)).st_size == file.size
        except FileNotFoundError:
            return False

    def begin(self, file: File) -> int:
        """A descriptor to write the content to; `finish` makes it appear."""
        path = self._part(file)
        with disks.errors(self.directory):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            return fd

    def finish(self, file: File, fd: int) -> None:
        """The content is written whole: it appears in its place."""
        with disks.errors(self.directory):
            os.fchmod(fd, 0o555 if file.executable else 0o444)
            os.utime(fd, (STAMP_S, STAMP_S))
            os.rename(self._part(file), self.object(file))

    def link(self, file: File, target: str) -> None:
        """Put a link to the content there. Once a file can have no more links, another one takes its place here."""
        try:
            os.link(self.object(file), target)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            with open(self.object(file), "rb") as content, open(self.begin(file), "wb") as another:
                shutil.copyfileobj(content, another)
                another.flush()
                os.link(self._part(file), target)  # before others have it, who may use up its links
                self.finish(file, another.fileno())

    def abandon(self, file: File) -> None:
        """Remove what this process has begun."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part(file))

    def drop(self, file: File) -> None:
        """Remove content that turned out to be damaged."""
        self.abandon(file)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.object(file))

    def _part(self, file: File) -> str:
        return f"{self.object(file)}.{os.getpid()}"

    # -- environments -------------------------------------------------------------------------------------------------

    def environment(self, digest: str) -> str:
        """The directory of the environment, whether it is there or not."""
        return os.path.join(self.directory, "envs", digest)

    def is_complete(self, digest: str) -> bool:
        """Whether the environment is there, ready to be used."""
        return os.path.exists(self.environment(digest) + _DONE)

    def complete(self, digest: str, manifest: Manifest, own_bytes: int) -> None:
        """The environment is ready. `own_bytes`: the size of what it has besides links to contents."""
        about = {"source": manifest.source, "own_bytes": own_bytes}
        files.write_whole(self.environment(digest) + _DONE, json.dumps(about).encode("ascii"), 0o600, sync=False)

    def unfinish(self, digest: str) -> None:
        """The environment is not ready, though it may be used."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.environment(digest) + _DONE)

    def forget(self, digest: str) -> None:
        """Remove the environment; contents that no other one has are removed by `prune`."""
        self.unfinish(digest)
        shutil.rmtree(self.environment(digest), ignore_errors=True)

    def use(self, digest: str) -> int:
        """Hold the environment as long as the returned descriptor is open, so that it is not removed."""
        fd = self._locked(digest, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.environment(digest) + _DONE)  # or it may be removed for its age
        return fd

    def guard(self) -> int:
        """A descriptor that keeps systemd-tmpfiles from removing anything here, as long as it is open."""
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    @contextlib.contextmanager
    def making(self, digest: str) -> Iterator[bool]:
        """Be the only process on this host that makes the environment; yields False while another one does."""
        try:
            made = self._locked(digest, fcntl.LOCK_EX | fcntl.LOCK_NB, _NEW)
        except BlockingIOError:
            yield False
            return
        contents = self._locked("", fcntl.LOCK_SH)
        try:
            yield True
        finally:
            os.close(contents)
            os.close(made)

    @contextlib.contextmanager
    def unpacking(self) -> Iterator[str]:
        """A new directory for what is packed, removed at the end. Meanwhile no process removes contents."""
        import tempfile

        contents = self._locked("", fcntl.LOCK_SH)
        try:
            with disks.errors(self.directory):
                directory = tempfile.mkdtemp(dir=os.path.join(self.directory, "unpacked"))
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(contents)

    def _locked(self, digest: str, how: int, ending: str = _LOCK) -> int:
        """A lock of the environment; without a digest, of all contents: they are used, or some are removed."""
        fd = os.open(self.environment(digest) + ending, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
        except OSError:
            os.close(fd)
            raise
        if how == fcntl.LOCK_SH:
            os.utime(fd)  # when it was used last
        return fd

    # -- quota --------------------------------------------------------------------------------------------------------

    def prune(self, quota_bytes: int) -> List[str]:
        """Remove what no run has used for longest until all is within the quota; returns the sources of what was."""
        removed: List[str] = []
        for kept in sorted(self.kept(), key=lambda kept: kept.used):
            if not self._sweep() or self.size() <= quota_bytes:
                break  # or another run makes one: what is removed would free nothing now
            with contextlib.suppress(BlockingIOError):  # in use
                fd = self._locked(kept.digest, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    self.forget(kept.digest)
                    removed.append(kept.source)
                finally:
                    os.close(fd)
        self._sweep()
        return removed

    def kept(self) -> List[Kept]:
        """The environments that are complete."""
        found = []
        for name in os.listdir(os.path.join(self.directory, "envs")):
            digest, ending = os.path.splitext(name)
            if ending == _DONE:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    about = json.loads(files.read_word(self.environment(digest) + _DONE))
                    used = os.stat(self.environment(digest) + _LOCK).st_mtime
                    found.append(Kept(digest, used, str(about["source"]), int(about["own_bytes"])))
        return found

    def size(self) -> int:
        """The size of all contents, and of what environments have besides."""
        return sum(about.st_size for _, about in self._objects()) + sum(kept.own_bytes for kept in self.kept())

    def _sweep(self) -> bool:
        """Remove contents that no environment has; False if that cannot be done, as one is being made."""
        try:
            fd = self._locked("", fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            self._remove_left()
            for path in [path for path, about in self._objects() if about.st_nlink == 1]:
                os.unlink(path)
        finally:
            os.close(fd)
        return True

    def _remove_left(self) -> None:
        """Remove what starts that were killed have left. No other one makes an environment now, or unpacks one."""
        for entry in os.scandir(os.path.join(self.directory, "unpacked")):
            shutil.rmtree(entry.path, ignore_errors=True)
        complete = {kept.digest for kept in self.kept()}
        for entry in os.scandir(os.path.join(self.directory, "envs")):
            if entry.is_dir(follow_symlinks=False) and entry.name not in complete:
                with contextlib.suppress(BlockingIOError):  # in use, or another process removes it
                    fd = self._locked(entry.name, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    try:
                        self.forget(entry.name)
                    finally:
                        os.close(fd)

    def _objects(self) -> Iterator[Tuple[str, os.stat_result]]:
        for directory in os.scandir(os.path.join(self.directory, "objects")):
            for entry in os.scandir(directory.path):
                with contextlib.suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)


class Kept(NamedTuple):
    """An environment that is complete."""

    digest: str
    used: float
    """When a run began to use it last."""

    source: str
    own_bytes: int


def is_used(lock: int) -> bool:
    """Whether another process uses the environment, too; `lock`: that of this one, which makes it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)  # also if it was refused: the former one is gone then
    return False
