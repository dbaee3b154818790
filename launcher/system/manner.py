"""How this process prints, as `launcher.output` keeps it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from launcher.system.dataclass import dataclass, field
from launcher.system.writing import OpenLines, takes

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.system.writing import LiveLine, Writer


@dataclass(slots=True)
class Manner:
    """`output.setup` changes it."""

    command: str = ""
    format: str = "human"
    verbosity: int = 0
    has_ended: bool = False
    """Whether the object is printed that says how the command ended."""

    closed: dict[int, OSError] = field(default_factory=dict)
    """Streams that can no longer be written, with the reason."""

    blocks: bool = True
    """Whether a reader that does not read is waited for."""

    lines: OpenLines = field(default_factory=OpenLines)
    writer: Writer | None = None
    live: LiveLine | None = None
    """A temporary line on the terminal (`console.live_line`)."""

    progress: Callable[[str, tuple[int, int] | None], None] | None = None
    """Shows what the current wait is for."""

    def takes(self, fd: int) -> bool:
        """Whether the stream can still be written."""
        if not self.blocks and not takes(fd):
            self.closed.setdefault(fd, _unread())
        return fd not in self.closed

    def give_up(self, writer: Writer) -> bool:
        """Wait for no reader any more; whether stdout has none. A stream that is read gets the rest of its output."""
        self.blocks = False
        writer.write_rest()
        self.closed.update({fd: _unread() for fd in (1, 2) if writer.is_stuck(fd)})
        return 1 in self.closed


def _unread() -> OSError:
    return OSError(errno.EAGAIN, "no one reads it")
