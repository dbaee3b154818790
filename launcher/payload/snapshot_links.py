"""Symbolic links of a snapshot: those within the directory stay links, others are kept, followed or refused."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal

from launcher.errors import SpecError
from launcher.payload.snapshot_file import File, unreadable
from launcher.payload.snapshot_files import LIMIT_FILES
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Links = Literal["keep", "follow", "refuse"]
"""What becomes of links that lead out of the directory."""

_SHOWN = 5


def inside(directory: Path, name: str, target: str) -> str | None:
    """The link's target, relative to the link; None if it is not in the directory."""
    base = (directory / name).parent
    for end in (os.path.realpath(base / target), os.path.normpath(base / target)):
        if os.path.commonpath((end, directory)) != str(directory):
            return None
    return os.path.relpath(target, base) if os.path.isabs(target) else target


def outside(directory: Path, links: Mapping[str, str], how: Links, *, tell: bool) -> tuple[list[File], list[str]]:
    """What is sent for links (names to targets) that lead out of the directory, and what the user should know.

    `tell`: they are on another disk. Raises `SpecError` if they are refused, or lead to nothing that can be sent.
    """
    named = amounts.listed((f"{name} -> {target}" for name, target in links.items()), _SHOWN)
    if how == "refuse":
        raise SpecError(
            f"links lead out of {str(directory)!r}: {named}",
            hint="--links keep sends them as links, --links follow sends what they lead to; "
            "or list them in .gitignore or .distlaunchignore",
        )
    if how == "keep":
        files = [File(path=name, size=0, link=_kept(directory, name, target)) for name, target in links.items()]
        why = f"links that lead out of the directory stay links: {named}; --links follow sends what they lead to"
        return files, [why] if tell else []
    files, skipped = [], list[str]()
    for name in links:
        for found in _followed(name, os.path.realpath(directory / name), skipped):
            files.append(found)
            if len(files) > LIMIT_FILES:
                raise SpecError(
                    f"link {name} leads to more than {LIMIT_FILES} files, too many to be sent with a run",
                    hint="--links keep sends it as a link, or list it in .distlaunchignore",
                )
    return files, [
        f"links in directories that links lead to, not sent: {amounts.listed(skipped, _SHOWN)}"
    ] if skipped else []


def _kept(directory: Path, name: str, target: str) -> str:
    """The target for a link in a copy: absolute, as a relative one would lead elsewhere, unless it is in the copy."""
    base = (directory / name).parent
    end = os.path.normpath(base / target)
    return os.path.relpath(end, base) if os.path.commonpath((end, directory)) == str(directory) else end


def _followed(name: str, real: str, skipped: list[str]) -> Iterator[File]:
    """The file that a link leads to, or all files below the directory."""

    def refuse(error: OSError) -> None:
        raise unreadable(os.path.join(name, os.path.relpath(error.filename, real)), error) from error

    try:
        about = os.stat(real)
    except OSError as error:
        raise unreadable(name, error) from error
    if not stat.S_ISDIR(about.st_mode):
        yield from _file(name, real, about)
        return
    for above, directories, names in os.walk(real, onerror=refuse):
        below = os.path.join(name, os.path.relpath(above, real)) if above != real else name
        skipped += [f"{below}/{each}" for each in directories if os.path.islink(os.path.join(above, each))]
        for each in sorted(names):
            path = os.path.join(above, each)
            if os.path.islink(path):
                skipped.append(f"{below}/{each}")
                continue
            try:
                about = os.stat(path)
            except FileNotFoundError:  # as one that was removed a moment ago
                continue
            except OSError as error:
                raise unreadable(f"{below}/{each}", error) from error
            yield from _file(f"{below}/{each}", path, about)


def _file(name: str, path: str, about: os.stat_result) -> Iterator[File]:
    if stat.S_ISREG(about.st_mode):
        yield File(path=name, size=about.st_size, executable=bool(about.st_mode & 0o100), source=path)
