"""The user's files as they are now, for nodes that cannot see them: collected once, addressed by content."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from launcher.agent.ssh.user_files import combined
from launcher.errors import SpecError
from launcher.payload import credentials
from launcher.payload.snapshot_files import git_root, listed
from launcher.system import amounts, input_file, storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCK_BYTES = 1 << 20
_MTIME_S = 946_684_800  # 2000-01-01: the same for all, and not 0, which ninja takes for "missing"
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file or link of a snapshot."""

    path: str
    """Relative to the directory; bytes that are not UTF-8 as surrogates."""

    size: int
    executable: bool = False
    link: str | None = None
    """Target of a symbolic link, relative unless it is outside the directory; None for a file."""

    sha256: str = ""

    @property
    def mode(self) -> int:
        """Permissions of the copy."""
        return 0o755 if self.executable else 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of a directory at one moment, made by `collect`."""

    directory: Path
    files: tuple[File, ...]
    """Sorted by path."""

    warnings: tuple[str, ...] = ()
    """What the user should know, such as files that were left out."""

    @property
    def total_bytes(self) -> int:
        """Sum of all sizes."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over paths, modes and contents: equal digests mean equal copies."""
        return combined(
            (file.path, f"{file.mode:o}" if file.link is None else "link", file.link or "", file.sha256)
            for file in self.files
        )

    def copy_to(self, dest: Path) -> None:
        """Write the files below `dest`, which is created. Raises `SpecError` if one has changed since `collect`."""
        with storage.storage_errors(dest):
            dest.mkdir(parents=True, exist_ok=True)
            for file in self.files:
                path = dest / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                if file.link is not None:
                    path.symlink_to(file.link)
                    continue
                with open(path, "xb") as copy:
                    copy.writelines(_Reader(self.directory, file))
                path.chmod(file.mode)
                os.utime(path, (_MTIME_S, _MTIME_S))

    def write_tar(self, target: Path | IO[bytes], *, compress: bool = False) -> None:
        """Write the files as a tar, with the same bytes for the same digest. Raises `SpecError` as `copy_to` does."""
        with ExitStack() as stack:
            if isinstance(target, Path):
                stack.enter_context(storage.storage_errors(target))
                target = stack.enter_context(open(target, "wb"))
            if compress:
                target = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=1, fileobj=target, mtime=0))  # type: ignore[assignment]
            tar = stack.enter_context(tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT))
            for file in self.files:
                info = tarfile.TarInfo(file.path)
                info.mtime = _MTIME_S
                if file.link is not None:
                    info.type, info.linkname, info.mode = tarfile.SYMTYPE, file.link, 0o777
                    tar.addfile(info)
                else:
                    info.mode, info.size = file.mode, file.size
                    reader = _Reader(self.directory, file)
                    tar.addfile(info, io.BufferedReader(reader, _BLOCK_BYTES))
                    reader.check()


def root(directory: Path) -> Path:
    """The top of the git worktree that `directory` is in; `directory` itself if there is none."""
    return git_root(directory) or directory


def collect(
    directory: Path,
    *,
    limit_bytes: int,
    also: Sequence[str] = (),
    leave_out: Sequence[Path] = (),
    keep_outside_links: bool = False,
    ship_secrets: bool = False,
) -> Snapshot:
    """The files of `directory`: in a git worktree, tracked files as they are now, and new ones that are not ignored.

    Args:
        limit_bytes: larger snapshots are a `SpecError` that names the largest entries.
        also: paths in `directory` to include even if git ignores them, such as the script.
        leave_out: files and directories to exclude, wherever they are, such as the directory of all runs.
        keep_outside_links: keep links that lead out of the directory, for a copy on the same file system.
        ship_secrets: include files that look like credentials.

    Raises:
        SpecError: too many bytes or files, links out of the directory, unreadable files, credentials.
        CommandError: git does not finish.
    """
    directory = directory.resolve()
    paths, warnings = listed(directory, limit_files=100_000, leave_out=[path.resolve() for path in leave_out])
    paths |= {os.fsencode(path) for path in (_real(directory, path) for path in also) if _exists_in(directory, path)}
    files: list[File] = []
    outside: list[str] = []
    foreign: list[str] = []
    for path in sorted(paths):
        name = os.fsdecode(path)
        try:
            about, target, is_foreign = input_file.look_below(directory, name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # tracked but deleted, or its directory has become a link
        except OSError as error:
            raise _unreadable(name, error) from error
        foreign += [name] if is_foreign else []
        if target:
            link = _link(directory, name, target, keep_outside=keep_outside_links)
            if link is None:
                outside.append(name)
            else:
                files.append(File(path=name, size=0, link=link))
        elif stat.S_ISREG(about.st_mode):
            files.append(File(path=name, size=about.st_size, executable=bool(about.st_mode & 0o100)))
        elif not stat.S_ISDIR(about.st_mode):
            warnings.append(f"{name} is not a regular file (a socket, pipe or device): left out")
    _check_links(directory, outside)
    if foreign:
        warnings.append(f"not yours, and in a directory that anyone may write to: {_some(foreign)}; sent anyway")
    _check_size(directory, files, limit_bytes)
    hashed = _hashed(directory, files, ship_secrets=ship_secrets)
    return Snapshot(directory=directory, files=hashed, warnings=tuple(warnings))


def _check_links(directory: Path, outside: Sequence[str]) -> None:
    if outside:
        raise SpecError(
            f"links lead out of {str(directory)!r}: {_some(outside)}",
            hint="their targets are not on the nodes: "
            "list the links in .gitignore, or replace them by what they point to",
        )


def _exists_in(directory: Path, path: str) -> bool:
    return not path.startswith(("/", "../")) and os.path.lexists(directory / path)


def _real(directory: Path, path: str) -> str:
    """The path with links in its directory part resolved: these links are collected themselves."""
    above, last = os.path.split(os.path.normpath(path))
    return os.path.relpath(os.path.join(os.path.realpath(directory / above), last), directory)


def _link(directory: Path, name: str, target: str, *, keep_outside: bool) -> str | None:
    """The link's target, relative to the link, if inside the directory; else absolute if `keep_outside`, or None."""
    base = (directory / name).parent
    for end in (os.path.realpath(base / target), os.path.normpath(base / target)):
        if os.path.commonpath((end, directory)) != str(directory):
            return os.path.join(base, target) if keep_outside else None
    return os.path.relpath(target, base) if os.path.isabs(target) else target


def _check_size(directory: Path, files: Sequence[File], limit_bytes: int) -> None:
    total = sum(file.size for file in files)
    if total <= limit_bytes:
        return
    sizes: dict[str, int] = {}
    for file in files:
        top, slash, _ = file.path.partition("/")
        sizes[top + slash] = sizes.get(top + slash, 0) + file.size
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN]
    raise SpecError(
        f"the files in {str(directory)!r} are {amounts.size(total)}, and at most {amounts.size(limit_bytes)} are sent "
        "with a run; the largest: " + ", ".join(f"{name} {amounts.size(sizes[name])}" for name in largest),
        hint="list what the run does not need in .gitignore (of a git repository), start in a smaller directory, "
        "or raise --snapshot-limit; data sets belong on a file system of the nodes",
    )


def _hashed(directory: Path, files: Sequence[File], *, ship_secrets: bool) -> tuple[File, ...]:
    """The files with the hashes of their first `size` bytes: what is appended to a log meanwhile does not count.

    Raises `SpecError` if some look like credentials, unless `ship_secrets`.
    """
    hashed, secrets = [], []
    for file in files:
        path = str(directory / file.path)
        # No content is sent for a link that leads out.
        found = credentials.named(path) and not os.path.isabs(file.link or "")
        if file.link is None:
            reader = _Reader(directory, file)
            for number, block in enumerate(reader):
                found = found or (number == 0 and credentials.inside(path, block))
            hashed.append(replace(file, sha256=reader.hash.hexdigest()))
        else:
            hashed.append(file)
        secrets += [file.path] if found else []
    if not ship_secrets:
        credentials.check_files(secrets)
    return tuple(hashed)


class _Reader(io.RawIOBase):
    """Reads as many bytes of a file as were collected, and detects changes."""

    def __init__(self, directory: Path, file: File) -> None:
        self.hash = hashlib.sha256()
        self._about, self._left = file, file.size
        try:
            self._file = open(input_file.open_below(directory, file.path), "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise _unreadable(file.path, error) from error

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(_BLOCK_BYTES):
            yield block
        self.check()

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes. Raises `SpecError` if there are fewer than there were."""
        view = memoryview(buffer)[: self._left]
        if not view:
            return 0
        try:
            count = self._file.readinto(view) or 0
        except OSError as error:
            raise _unreadable(self._about.path, error) from error
        if not count:
            raise self._changed()
        self.hash.update(view[:count])
        self._left -= count
        return count

    def check(self) -> None:
        """Raise `SpecError` unless the bytes that were read are those that were collected."""
        self.close()
        if self._left or self._about.sha256 not in ("", self.hash.hexdigest()):
            raise self._changed()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _changed(self) -> SpecError:
        return SpecError(
            f"{self._about.path} changed while it was read",
            hint="start again; if it changes all the time and the run does not need it, list it in .gitignore",
        )


def _unreadable(name: str, error: OSError) -> SpecError:
    return SpecError(
        f"{name} cannot be read: {error.strerror}",
        hint="make it readable, or list it in .gitignore if the run does not need it",
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
