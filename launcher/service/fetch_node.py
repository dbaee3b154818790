"""The files of one node of a run: listed, transferred, verified, and continued where a transfer stopped."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import CommandError, RequestError
from launcher.system import amounts
from launcher.system.dataclass import dataclass, field
from launcher.system.partial import Partial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from launcher.backends._outputs import Listed, Outputs
    from launcher.results.files import File, LeftOut

_TRIES = 2
_SHOWN = 5


class Node(NamedTuple):
    """A node, and the directory here for its files, relative to the one for all."""

    rank: int
    below: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What was fetched from a node."""

    node: Node
    directory: str
    """Where they are on the node."""

    there: tuple[str, ...]
    """If nothing matches: some names in that directory."""

    files: list[File] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Paths of files that changed whenever they were read."""

    unread: list[str] = field(default_factory=list)
    """What the errors say of files that could not be read to their ends."""

    def missing(self) -> str:
        """Why files are missing that have to be had; empty if none are."""
        if self.unread:
            return f"not read to the end, and not fetched: {amounts.listed(self.unread, _SHOWN)}"
        if self.changed:
            return f"changed while they were read, twice, and not fetched: {amounts.listed(self.changed, _SHOWN)}"
        return ""


class Progress:
    """How much of all nodes' files is here; nodes are transferred in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files = self._total = self._done = 0
        self.given_up = False
        """The user does not wait any more: the threads end."""

    def add(self, files: int, size: int) -> None:
        """Count the files that one more node has."""
        with self._lock:
            self._files, self._total = self._files + files, self._total + size

    def moved(self, path: str, size: int) -> None:
        """Count bytes of a file; a negative number takes some back."""
        if self.given_up:
            raise CommandError(f"{path}: given up")
        with self._lock:
            self._done += size
            told = f"fetching {path} ({amounts.counted(self._files, 'file')}, {amounts.size(self._total)})"
            output.progress(told, (self._done, self._total))


def fetch(outputs: Outputs, node: Node, patterns: Sequence[str], to: Path, progress: Progress) -> Files:
    """Fetch the node's files that match a pattern, or without one all that were not sent."""
    output.progress(f"listing the files of node {node.rank}")
    listings = [outputs.listed(pattern) for pattern in patterns or ("",)]
    there = next((listing.there for listing in listings if listing.there), ())
    found = Files(node=node, directory=listings[0].directory, there=there)
    for name, why in dict(each for listing in listings for each in listing.left_out).items():
        found.left_out.append({"path": name, "node": node.rank, "why": why})
    files = {file.name: file for listing in listings for file in listing.files}
    progress.add(len(files), sum(file.size for file in files.values()))
    for file in files.values():
        _take(found, outputs, file, to, progress)
    return found


def _take(found: Files, outputs: Outputs, file: Listed, to: Path, progress: Progress) -> None:
    """Fetch one file; one that is gone meanwhile, or may not be read, is left out."""
    rank, name = found.node.rank, os.path.join(found.node.below, file.name)
    path = to / name
    try:
        done = _transferred(outputs, file, path, lambda size: progress.moved(name, size))
    except RequestError as error:
        if error.in_part:
            found.unread.append(error.message)
        else:
            found.left_out.append({"path": file.name, "node": rank, "why": error.message})
        return
    if done is None:
        found.changed.append(name)
    else:
        size, transferred = done
        found.files.append({"path": name, "bytes": size, "node": rank, "transferred": transferred})


def _transferred(outputs: Outputs, file: Listed, path: Path, moved: Callable[[int], None]) -> tuple[int, bool] | None:
    """Fetch one file: its size, and whether it was transferred or is here already. None: it changes all the time."""
    if _is_here(path, file):
        moved(file.size)
        return file.size, False
    part = Partial(path)
    try:
        offset, tries = part.resume(file.size), 0
        moved(offset)

        def take(block: bytes) -> None:
            part.write(block)
            moved(len(block))

        while True:
            ending = outputs.read(file.name, offset, take)
            if not ending.changed and (part.size, part.sha256.hexdigest()) == (ending.size, ending.sha256):
                part.finish(ending.mtime_ns)
                return part.size, True
            moved(-part.size)
            part.restart()
            tries += offset == 0 or ending.changed  # what was here may be of another version
            if tries == _TRIES:
                return None
            offset = 0
            if ending.changed:
                output.warn(f"{path.name} changed while it was read; reading it again")
    finally:
        part.close()


def _is_here(path: Path, file: Listed) -> bool:
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and (about.st_size, about.st_mtime_ns) == (file.size, file.mtime_ns)
