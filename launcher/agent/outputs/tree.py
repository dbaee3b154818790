"""The files below a directory, listed by pattern and read without following a link out of it."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import own, times

_BLOCK_BYTES = 1 << 20
_FILES = 200_000
_SHOWN = 20
_GLOB = re.compile(r"[*?\[]")
_WORDS = re.compile(r"\*+|\?|\[(!?)(\]?[^\]]*)\]|.", re.DOTALL)
_HOW = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
_REFUSED = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)
"""What a file itself is the reason of; after any other error, as of a disk, it may still be had."""

Listed = Dict[str, Any]


class TreeError(Exception):
    """A file cannot be listed or read; the message is for the user."""


class Tree:
    """The files below one directory. Names are relative to it; bytes that are not UTF-8 are surrogates in them."""

    def __init__(self, top: str, alive: Callable[[], None] = lambda: None) -> None:
        """`alive` is called now and then during long calls."""
        self.top, self._alive = top, alive
        self._top = os.path.realpath(os.fsencode(top))
        self._project = own.project_of(self._top)

    def listed(self, pattern: str) -> Listed:
        """The files that match: `files` (name, bytes, mtime in ns), `left_out` (name, why), and `there` if none match.

        A pattern of a directory matches all files below it; an empty one all that no launcher has sent.
        """
        fits, start = matcher(pattern)
        is_sent = times.sent(b"" if pattern else times.read(_text(self._top)))
        files: List[Tuple[str, int, int]] = []
        left_out: List[Tuple[str, str]] = []
        for name, entry in self._walk(start, left_out):
            if not fits(name):
                continue
            about, why = self._look(entry)
            if about is None:
                left_out += [(name, why)] if why else []
            elif pattern or not is_sent(name, about.st_mtime_ns, entry.is_symlink()):
                files.append((name, about.st_size, about.st_mtime_ns))
            if len(files) + len(left_out) > _FILES:
                raise TreeError(f"more than {_FILES} files match {pattern!r} in {self.top}")
        there = [] if files or left_out else self._there()
        return {"top": self.top, "files": sorted(files), "left_out": sorted(left_out), "there": there}

    def _there(self) -> List[str]:
        """The first names in the directory, for a message."""
        with os.scandir(self._top) as entries:
            names = sorted(_text(entry.name) + "/" * entry.is_dir(follow_symlinks=False) for entry in entries)
        return names[:_SHOWN]

    def _walk(self, start: bytes, left_out: List[Tuple[str, str]]) -> Iterator[Tuple[str, os.DirEntry[bytes]]]:
        """All entries at and below that path, except directories; those that may not be read are added to the list."""
        above, last = os.path.split(start)
        if os.path.realpath(self._place(above)) != self._place(above).rstrip(b"/"):
            return  # missing or a link: its files are below their real place
        waiting = [(above, last)]
        while waiting:
            below, only = waiting.pop()
            self._alive()
            try:
                with os.scandir(self._place(below)) as entries:
                    found = [entry for entry in entries if not only or entry.name == only]
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                if not (below and isinstance(error, PermissionError)):
                    raise TreeError(f"{_text(self._place(below))}: {error.strerror}") from error
                left_out.append((_text(below) + "/", error.strerror or str(error)))
                continue
            for entry in found:
                path = os.path.join(below, entry.name)
                if entry.is_dir(follow_symlinks=False) or (not below and os.path.isdir(self._of_project(path))):
                    waiting.append((path, b""))
                else:
                    yield _text(path), entry

    def _place(self, path: bytes) -> bytes:
        """Where a path is, in this directory or in the project's."""
        first, slash, rest = path.partition(b"/")
        return (self._of_project(first) or os.path.join(self._top, first)) + slash + rest

    def _of_project(self, name: bytes) -> bytes:
        """What a link in a run's own directory leads to, if it is what has that name in the project's."""
        target = os.path.join(self._project, name)
        return target if self._project and os.path.realpath(os.path.join(self._top, name)) == target else b""

    def _look(self, entry: os.DirEntry[bytes]) -> Tuple[Optional[os.stat_result], str]:
        """The status of a file, or of the one in this directory that a link leads to; else why it is left out."""
        try:
            if entry.is_symlink() and not self._root_of(os.path.realpath(entry.path)):
                return None, "a link that leads out of the directory"
            about = os.stat(entry.path)
        except FileNotFoundError:
            return None, "a link to nothing" if entry.is_symlink() else ""
        except OSError as error:
            return None, error.strerror or str(error)
        if stat.S_ISDIR(about.st_mode):
            return None, "a link to a directory"
        return (about, "") if stat.S_ISREG(about.st_mode) else (None, "not a regular file")

    def _root_of(self, path: bytes) -> bytes:
        """This directory, or that of the project, if the path is below it; empty if it leads out."""
        roots = (root for root in (self._top, self._project) if root)
        return next((root for root in roots if path.startswith(root.rstrip(b"/") + b"/")), b"")

    def read(self, name: str, offset: int, sink: Callable[[bytes], None]) -> Listed:
        """Pass a file's bytes from the offset on to `sink`; what is appended meanwhile is left out. Raises `OSError`.

        Returns its `bytes`, `mtime_ns`, `sha256` of all of them, and whether it `changed` while it was read.
        """
        import hashlib  # 4 ms; a start lists no files

        fd = self._open(name)
        with open(fd, "rb", buffering=0) as file:
            before = os.fstat(fd)
            found = hashlib.sha256()
            self._pass(file, min(offset, before.st_size), found.update)

            def take(block: bytes) -> None:
                found.update(block)
                sink(block)

            complete = self._pass(file, before.st_size - min(offset, before.st_size), take)
            after = os.fstat(fd)
            changed = not complete
            if complete and (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                again = hashlib.sha256()
                file.seek(0)
                changed = not self._pass(file, before.st_size, again.update) or again.digest() != found.digest()
        return {
            "bytes": before.st_size, "mtime_ns": before.st_mtime_ns, "sha256": found.hexdigest(), "changed": changed,
        }  # fmt: skip

    def _pass(self, file: Any, size: int, sink: Callable[[bytes], object]) -> bool:
        """Pass that many bytes on; False if the file ends before."""
        while size:
            block = file.read(min(size, _BLOCK_BYTES))
            if not block:
                return False
            sink(block)
            size -= len(block)
            self._alive()
        return True

    def _open(self, name: str) -> int:
        """A descriptor of the regular file of that name; no directory and no file may have become a link meanwhile."""
        path = os.path.realpath(os.path.join(self._top, os.fsencode(name.encode("utf-8", "surrogateescape"))))
        top = self._root_of(path)
        if not top:
            raise TreeError(f"{name}: a link that leads out of the directory")
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            *above, last = path[len(top.rstrip(b"/")) + 1 :].split(b"/")
            for step in above:
                inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
            file = os.open(last, _HOW, dir_fd=fd)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            raise TreeError(f"{name}: {error.strerror}") from error
        finally:
            os.close(fd)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise TreeError(f"{name}: not a regular file")
        return file


def matcher(pattern: str) -> Tuple[Callable[[str], bool], bytes]:
    """Whether a name matches, and a path that all matching names begin with."""
    plain = os.path.normpath(pattern) if pattern else ""
    plain = "" if plain == "." else plain
    if plain.startswith(("/", "../")) or plain == "..":
        raise TreeError(f"pattern {pattern!r} leads out of the directory")
    if not plain:
        return lambda _: True, b""
    parts = plain.split("/")
    words = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            words.append(".*" if last else "(?:.*/)?")
        else:
            words.append(_WORDS.sub(_as_regex, part) + ("" if last else "/"))
    try:
        full = re.compile("(?s:" + "".join(words) + r"(?:/.*)?)\Z")
        fixed = parts[: next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))]
        start = "/".join(fixed).encode("utf-8", "surrogateescape")
    except (re.error, UnicodeEncodeError) as error:
        raise TreeError(f"pattern {pattern!r} is invalid: {error}") from error

    def fits(name: str) -> bool:
        return name == plain or name.startswith(plain + "/") or full.match(name) is not None

    return fits, start


def _as_regex(word: re.Match[str]) -> str:
    """A part of a pattern, as a regular expression."""
    if word[2]:
        inner = re.sub(r"([\[\]\\^])", r"\\\1", word[2])
        return f"[^/{inner}]" if word[1] else f"[{inner}]"
    return {"*": "[^/]*", "?": "[^/]"}.get(word[0][0]) or re.escape(word[0])


def _text(path: bytes) -> str:
    """A path as in JSON, whatever the encoding of this host."""
    return path.decode("utf-8", "surrogateescape")
