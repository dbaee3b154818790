"""What is not sent though it is in the directory: by `.distlaunchignore`, and without git by well-known names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from launcher.errors import SpecError
from launcher.system import amounts, input_file

if TYPE_CHECKING:
    from pathlib import Path

FILE = ".distlaunchignore"

_RECORDS = (b"wandb", b"mlruns", b"lightning_logs", b"node_modules", b".tox", b".nox")
_CACHES = (b".mypy_cache", b".pytest_cache", b".ruff_cache", b".ipynb_checkpoints")
_LARGE = (b"data", b"datasets", b"checkpoints", b"outputs")
LARGE_BYTES = 20_000_000
"""Above this, directories of these names at the top are left out."""

_MOST_FILES = 20_000


class Ignored:
    """The rules of one directory."""

    def __init__(self, directory: Path) -> None:
        """Raises `SpecError` if its file cannot be read, or has an invalid line."""
        self._top = os.fsencode(directory)
        self._spec = _read(directory)
        self._left_out: list[str] = []

    def file(self, path: bytes) -> bool:
        """Whether the file of this name, relative to the directory, is left out by `.distlaunchignore`."""
        return self._ruled(path) is True

    def directory(self, path: bytes) -> bool:
        """Whether the directory is left out by `.distlaunchignore` or, without git, by its name."""
        ruled = self._ruled(path + b"/")
        if ruled is not None:
            return ruled
        name = os.path.basename(path)
        if name in _CACHES:
            return True
        if name not in _RECORDS and (path not in _LARGE):
            return False
        size, whole = _size(os.path.join(self._top, path))
        if name in _RECORDS or size > LARGE_BYTES:
            self._left_out.append(f"{os.fsdecode(path)}/ ({'' if whole else 'more than '}{amounts.size(size)})")
            return True
        return False

    def warnings(self) -> list[str]:
        """What was left out by its name."""
        if not self._left_out:
            return []
        again = self._left_out[0].partition(" ")[0]
        return [f"not sent: {', '.join(self._left_out)}; a line !{again} in {FILE} sends it"]

    def _ruled(self, path: bytes) -> bool | None:
        found: bool | None = self._spec.check_file(os.fsdecode(path)).include if self._spec is not None else None
        return found


def _read(directory: Path) -> Any:
    """The rules in the directory's file; None if there is none."""
    try:
        text = input_file.read_text(directory / FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{FILE} cannot be read: {error.strerror}", hint="it has the form of a .gitignore") from error
    from pathspec import GitIgnoreSpec  # few directories have one

    try:
        return GitIgnoreSpec.from_lines(text.splitlines())
    except (ValueError, re.error) as error:
        raise SpecError(f"{FILE}: {error}", hint="it has the form of a .gitignore") from error


def _size(directory: bytes) -> tuple[int, bool]:
    """The bytes below a directory, and whether all files were counted."""
    total = count = 0
    for above, _, names in os.walk(directory):
        for name in names:
            count += 1
            try:
                total += os.lstat(os.path.join(above, name)).st_size
            except OSError:
                continue
            if count > _MOST_FILES:
                return total, False
    return total, True
