"""One file of a snapshot, and its content as it was when the snapshot was taken."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

from launcher.errors import SpecError
from launcher.system import input_file
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 1 << 20


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
    source: str = ""
    """Where the content is, if not at `path` in the directory: what a link outside of it leads to."""

    @property
    def mode(self) -> int:
        """Permissions of the copy."""
        return 0o755 if self.executable else 0o644


class Reader(io.RawIOBase):
    """Reads as many bytes of a file as were collected, and detects changes."""

    def __init__(self, directory: Path, file: File) -> None:
        """Raises `SpecError` if it cannot be read."""
        self.hash = hashlib.sha256()
        self._about, self._left = file, file.size
        try:
            fd = input_file.open_fd(file.source) if file.source else input_file.open_below(directory, file.path)
            self._file = open(fd, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            known = file.sha256 and isinstance(error, FileNotFoundError)
            raise (self._changed() if known else unreadable(file.path, error)) from error

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
            raise unreadable(self._about.path, error) from error
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
            hint="start again; if it changes all the time and the run does not need it, "
            "list it in .gitignore or .distlaunchignore",
        )


def unreadable(name: str, error: OSError) -> SpecError:
    """The error for a file of that name."""
    return SpecError(
        f"{name} cannot be read: {error.strerror}",
        hint="make it readable, or list it in .gitignore or .distlaunchignore if the run does not need it",
    )
