"""The local copy of a node's files: each byte is at its own offset, no matter which process fetches it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.system.storage import Room, storage_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAKE_ROOM = "the run continues; make room, then: distlaunch logs -f RUN"


class Copy:
    """The local copy of a node's stream, or of another file that only grows."""

    def __init__(self, directory: Path, name: str = "stream") -> None:
        self.path = directory / name
        self.offset = 0
        """Where the next bytes go."""

        self._room = Room()

    def begin(self) -> int:
        """Return the size of the copy: more is written from there on, even if another process does so, too."""
        directory = self.path.parent
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.offset = self.path.stat().st_size if self.path.exists() else 0
        return self.offset

    def add(self, data: bytes) -> None:
        """Write the next part of the stream."""
        with storage_errors(self.path, _MAKE_ROOM):
            self._room.take(self.path, len(data), _MAKE_ROOM)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                while data:  # an almost full disk takes only a part
                    written = os.pwrite(fd, data, self.offset)
                    self.offset, data = self.offset + written, data[written:]
            finally:
                os.close(fd)

    def end(self, ending: Mapping[str, str]) -> None:
        """Write the other files, which are complete once the node has ended."""
        for name in ("stderr", "last_words"):
            with storage_errors(self.path.parent):
                (self.path.parent / name).write_text(ending.get(name, ""), encoding="utf-8")
