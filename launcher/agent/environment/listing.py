"""Lists an environment: its files with the digests of their content, which are kept for the next time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

from ..system import files
from . import content
from .manifest import BASE, CONDA, ENV, PIECE_BYTES, PREFIX, VENV, BringError, File, Manifest

_SYSTEM = ("/usr", "/bin", "/usr/local")
"""A base Python in these is the host's own: it is not brought, and each node must have it."""

_OF_CONDA = ("pkgs", "envs", "conda-meta")
"""What a base Python of conda has of other environments."""

_LEFT_OUT = (".git", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache")


def listed(directory: str, kept: str, tell: Callable[[int], object] = lambda _bytes: None) -> Manifest:
    """The manifest of the environment in a directory; `kept`: a file with what is known of its files, if any.

    `tell` gets the size of each file that had to be read.
    """
    top = os.path.realpath(directory)
    settings = _settings(top)
    python = _python(top, directory)
    kind = CONDA if os.path.exists(os.path.join(top, "bin/conda-unpack")) else VENV if settings else PREFIX
    if kind == PREFIX and os.path.isdir(os.path.join(top, "conda-meta")):
        raise BringError(f"{directory} is a conda environment, which cannot move: ship what conda-pack makes")
    base, home = _base(settings, top, python) if kind == VENV else (None, None)
    listing = _Listing(kept, tell)
    listing.roots = {top: ENV, **({base: BASE} if base else {})}
    listing.system_packages = settings.get("include-system-site-packages", "false") == "true"
    for root, name in listing.roots.items():
        listing.walk(root, name)
    listing.keep()
    every = sorted(listing.files, key=lambda file: file.path)
    notes = list(_leads_out(top, listing.roots))
    return Manifest(
        kind=kind, source=top, base=base, home=home, python=f"{ENV}/bin/{python}", tag=_tag(every), files=every,
        links=sorted(listing.links), notes=notes,
    )  # fmt: skip


def _settings(top: str) -> Dict[str, str]:
    """The settings of a virtual environment; empty for any other directory."""
    try:
        with open(os.path.join(top, "pyvenv.cfg"), encoding="utf-8") as file:
            pairs = [line.partition("=") for line in file]
    except FileNotFoundError:
        return {}
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _python(top: str, shown: str) -> str:
    for name in ("python3", "python"):
        if os.access(os.path.join(top, "bin", name), os.X_OK):
            return name
    raise BringError(f"{shown} is not a Python environment: it has no bin/python")


def _base(settings: Dict[str, str], top: str, python: str) -> Tuple[Optional[str], Optional[str]]:
    """The directory of the base Python, if it travels; else the directory in which each node must have it.

    The directory that the settings name may only have a link to it.
    """
    home = settings.get("home", "")
    found = os.path.realpath(os.path.join(top, "bin", python))
    if _place(found, {top: ENV}) is not None:  # a copy
        found = os.path.realpath(os.path.join(home, python))
    base = os.path.dirname(os.path.dirname(found))
    if not os.path.isdir(home) or not os.path.isdir(os.path.join(base, "lib")):
        raise BringError(f"the Python that {top} is based on is missing: {home or 'pyvenv.cfg names none'}")
    return (None, home) if base in _SYSTEM else (base, None)


def _tag(every: List[File]) -> str:
    for file in every:
        name = os.path.basename(file.path)
        if "/__pycache__/" in file.path and ".cpython-" in name:
            return "cpython-" + name.partition(".cpython-")[2].partition(".")[0]
    return ""


def _leads_out(top: str, roots: Dict[str, str]) -> Iterator[str]:
    """Directories that the environment imports from and that do not travel, such as those of editable installs."""
    lib = os.path.join(top, "lib")
    for version in sorted(os.listdir(lib)) if os.path.isdir(lib) else ():
        packages = os.path.join(lib, version, "site-packages")
        for name in sorted(os.listdir(packages)) if os.path.isdir(packages) else ():
            if name.endswith(".pth"):
                with open(os.path.join(packages, name), encoding="utf-8", errors="replace") as file:
                    lines = [line.strip() for line in file]
                for line in lines:
                    if os.path.isdir(line) and os.path.isabs(line) and not _place(line, roots):
                        yield f"{name} leads to {line}, which is not shipped"


def _place(path: str, roots: Dict[str, str]) -> Optional[str]:
    """Where a path below one of the roots is in the environment."""
    for root, name in roots.items():
        if f"{path}/".startswith(f"{root}/"):
            return name + path[len(root) :]
    return None


class _Listing:
    """Files and links, as they are found."""

    def __init__(self, kept: str, tell: Callable[[int], object]) -> None:
        self.files: List[File] = []
        self.links: List[Tuple[str, str]] = []
        self.roots: Dict[str, str] = {}
        self.system_packages = False
        self._kept, self._tell = kept, tell
        self._stats: Dict[str, os.stat_result] = {}
        self._before: Dict[str, List[Any]] = {}
        self._now: Dict[str, List[Any]] = {}
        with contextlib.suppress(OSError, ValueError), open(kept, encoding="ascii") as file:  # none: it is read anew
            self._before = dict(json.load(file))

    def _stat(self, path: str) -> os.stat_result:
        """As `os.stat`, asked once for each file: the disk may be slow."""
        if path not in self._stats:
            self._stats[path] = os.stat(path)
        return self._stats[path]

    def keep(self) -> None:
        """Keep what was found, if anything is new."""
        if self._kept and self._now != self._before:
            files.write_whole(self._kept, json.dumps(self._now).encode("ascii"), 0o600, sync=False)

    def walk(self, directory: str, place: str, through: Tuple[str, ...] = ()) -> None:
        """All of a directory. `through`: the directories outside of the environment that links have led to."""
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            raise BringError(f"{directory} cannot be read: {error.strerror}") from error
        for entry in entries:
            if not self._is_left_out(entry.name, place):
                self._add(entry.path, f"{place}/{entry.name}", through)

    def _is_left_out(self, name: str, place: str) -> bool:
        if name in _LEFT_OUT:
            return True
        if place == BASE and name in _OF_CONDA:
            return True
        if place.startswith(BASE):  # what a virtual environment does not use
            parts = f"{place}/{name}".split("/")
            packages = name == "site-packages" and len(parts) == 4 and not self.system_packages
            return packages or name.endswith(".a") or (parts[1:2] == ["lib"] and parts[3:] in (["test"], ["idlelib"]))
        return False

    def _add(self, path: str, place: str, through: Tuple[str, ...]) -> None:
        about = self._stats.get(path) or os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            self._add_link(path, place, through)
        elif stat.S_ISDIR(about.st_mode):
            self.walk(path, place, through)
        elif stat.S_ISREG(about.st_mode):
            self._add_file(path, place, about)

    def _add_link(self, path: str, place: str, through: Tuple[str, ...]) -> None:
        """A link within the environment stays one; for one that leads out, what it leads to travels."""
        target = os.path.realpath(path)
        inside = _place(target, self.roots)
        if inside is not None:
            raw = os.readlink(path)
            direct = _place(os.path.normpath(os.path.join(os.path.dirname(path), raw)), self.roots) or inside
            self.links.append((place, os.path.relpath(direct, os.path.dirname(place))))
        elif target.startswith("/usr/") or not os.path.exists(target):
            self.links.append((place, os.readlink(path)))
        elif os.path.isdir(target):
            if target not in through:
                self.walk(target, place, (*through, target))
        elif os.path.isfile(target):  # no pipe, socket or device
            self._add_file(target, place, os.stat(target))

    def _add_file(self, path: str, place: str, about: os.stat_result) -> None:
        self._stats[path] = about
        mark = list(content.mark(path, self._stat))
        known = self._before.get(path)
        if known is None or known[0] != mark:
            self._tell(about.st_size)
            try:
                known = [mark, *_content(path)]
            except OSError as error:
                raise BringError(f"{path} cannot be read: {error.strerror}") from error
        self._now[path] = known
        _, size, digests = known
        if digests:
            self.files.append(File(place, bool(about.st_mode & 0o100), size, digests))


def _content(path: str) -> Tuple[int, List[str]]:
    """The size of a file as it travels, and the digests of its pieces; none if it does not travel."""
    file = content.opened(path)
    if file is None:
        return 0, []
    with file:
        return _digests(file)


def _digests(file: BinaryIO) -> Tuple[int, List[str]]:
    size, found = 0, list[str]()
    while True:
        piece = read_piece(file)
        if not piece and found:
            return size, found
        size += len(piece)
        found.append(hashlib.sha256(piece).hexdigest())
        if len(piece) < PIECE_BYTES:
            return size, found


def read_piece(file: BinaryIO) -> bytes:
    """The next piece of a file, whole unless the file ends."""
    piece = file.read(PIECE_BYTES)
    while piece and len(piece) < PIECE_BYTES:
        more = file.read(PIECE_BYTES - len(piece))
        if not more:
            break
        piece += more
    return piece or b""
