"""The whole terminal as a screen: only lines that have changed are written, so that a slow line is not flooded.

rich's `Live` writes all of its lines each time. Of 512 ranks in 50 lines, few change within a second.
"""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.console import keys, live_line
from launcher.console.keys import Keys
from launcher.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

    from typing_extensions import Self

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_LEAST = (4, 20)


def available() -> bool:
    """Whether there is a user, and a terminal on which the cursor can be moved."""
    return keys.available() and os.isatty(output.STDOUT) and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """Our terminal, while it is open."""

    def __init__(self) -> None:
        self._keys = Keys(self._leave, signal.SIGTERM)
        self._shown: list[str] = []
        self._size = (0, 0)
        self._is_open = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._keys.open()
        self._before = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        signal.signal(signal.SIGCONT, self._before)
        self._keys.close()

    def _leave(self) -> None:
        if self._is_open:
            self._is_open, self._size = False, (0, 0)
            self._write(_LEAVE)

    def _continued(self, _number: int, _frame: FrameType | None) -> None:
        """Draw all of it again: while we were stopped, others have written to the terminal."""
        self._size = (0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        try:
            found = os.get_terminal_size(output.STDOUT)
        except OSError:
            return _LEAST
        return max(_LEAST[0], found.lines), max(_LEAST[1], found.columns)

    def draw(self, lines: Sequence[str]) -> bool:
        """Show these lines from the top, in the background none. Returns False once the terminal is closed."""
        if not live_line.in_foreground(output.STDOUT):
            return True
        rows, _ = size = self.size
        data = ""
        if size != self._size:
            data, self._shown, self._size, self._is_open = f"{_ENTER}\x1b[2J", [""] * rows, size, True
        wanted = [*lines[:rows], *[""] * (rows - len(lines))]
        for row, (line, before) in enumerate(zip(wanted, self._shown, strict=True)):
            if line != before:
                data += f"\x1b[{row + 1};1H{line}\x1b[K"
        self._shown = wanted
        return self._write(data)

    @staticmethod
    def _write(data: str) -> bool:
        try:
            output.text(data)
        except (output.StdoutClosedError, StorageError):  # the terminal is gone
            return False
        return True

    def keys(self, timeout_s: float) -> str:
        """The keys typed within that time; returns early with some."""
        select.select([0] if self._keys.ours else [], [], [], timeout_s)
        return self._keys.read()
