"""The user's files as they are now, for nodes that cannot see them: collected once, addressed by content."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from launcher.agent.ssh.user_files import combined
from launcher.errors import SpecError
from launcher.payload import credentials, snapshot_links
from launcher.payload.snapshot_file import File, Reader, unreadable
from launcher.payload.snapshot_files import LIMIT_FILES, git_root, listed
from launcher.system import amounts, input_file, storage
from launcher.system.dataclass import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.payload.snapshot_links import Links

_BLOCK_BYTES = 1 << 20
_MTIME_S = 946_684_800  # 2000-01-01: the same for all, and not 0, which ninja takes for "missing"
_SHOWN = 5


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
                    copy.writelines(Reader(self.directory, file))
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
                    reader = Reader(self.directory, file)
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
    links: Links = "keep",
    same_disk: bool = False,
    ship_secrets: bool = False,
) -> Snapshot:
    """The files of `directory`: in a git worktree, tracked files as they are now, and new ones that are not ignored.

    Args:
        limit_bytes: larger snapshots are a `SpecError` that names the largest entries.
        also: paths in `directory` to include even if git ignores them, such as the script.
        leave_out: files and directories to exclude, wherever they are, such as the directory of all runs.
        links: what becomes of links that lead out of the directory: links, what they lead to, or an error.
        same_disk: the copy is on the same file system, so what links lead to is there.
        ship_secrets: include files that look like credentials.

    Raises:
        SpecError: too many bytes or files, refused links, unreadable files, credentials.
        CommandError: git does not finish.
    """
    directory = directory.resolve()
    paths, warnings = listed(directory, limit_files=LIMIT_FILES, leave_out=[path.resolve() for path in leave_out])
    paths |= {os.fsencode(path) for path in (_real(directory, path) for path in also) if _exists_in(directory, path)}
    files: list[File] = []
    outside: dict[str, str] = {}
    foreign: list[str] = []
    for path in sorted(paths):
        name = os.fsdecode(path)
        try:
            about, target, is_foreign = input_file.look_below(directory, name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # tracked but deleted, or its directory has become a link
        except OSError as error:
            raise unreadable(name, error) from error
        foreign += [name] if is_foreign else []
        if target:
            link = snapshot_links.inside(directory, name, target)
            outside |= {} if link is not None else {name: target}
            files += [File(path=name, size=0, link=link)] if link is not None else []
        elif stat.S_ISREG(about.st_mode):
            files.append(File(path=name, size=about.st_size, executable=bool(about.st_mode & 0o100)))
        elif not stat.S_ISDIR(about.st_mode):
            warnings.append(f"{name} is not a regular file (a socket, pipe or device): left out")
    if outside:
        more, said = snapshot_links.outside(directory, outside, links, tell=not same_disk)
        files, warnings = sorted([*files, *more], key=lambda file: os.fsencode(file.path)), [*warnings, *said]
    if foreign:
        warnings.append(
            f"not yours, and in a directory that anyone may write to: {amounts.listed(foreign, _SHOWN)}; sent anyway"
        )
    _check_size(directory, files, limit_bytes)
    hashed = _hashed(directory, files, ship_secrets=ship_secrets)
    return Snapshot(directory=directory, files=hashed, warnings=tuple(warnings))


def _exists_in(directory: Path, path: str) -> bool:
    return not path.startswith(("/", "../")) and os.path.lexists(directory / path)


def _real(directory: Path, path: str) -> str:
    """The path with links in its directory part resolved: these links are collected themselves."""
    above, last = os.path.split(os.path.normpath(path))
    return os.path.relpath(os.path.join(os.path.realpath(directory / above), last), directory)


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
        hint="list what the run does not need in .gitignore or .distlaunchignore, start in a smaller directory, "
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
        found = (credentials.named(path) or credentials.named(file.source)) and not os.path.isabs(file.link or "")
        if file.link is None:
            try:
                reader = Reader(directory, file)
            except SpecError as error:
                if isinstance(error.__cause__, FileNotFoundError):  # as one that was removed a moment ago
                    continue
                raise
            for number, block in enumerate(reader):
                found = found or (number == 0 and credentials.inside(path, block))
            hashed.append(replace(file, sha256=reader.hash.hexdigest()))
        else:
            hashed.append(file)
        secrets += [file.path] if found else []
    if not ship_secrets:
        credentials.check_files(secrets)
    return tuple(hashed)
