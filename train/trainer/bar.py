"""A progress bar of the epoch, on a terminal."""

from __future__ import annotations

import sys
import time

WIDTH = 30
EVERY_S = 0.2


class Bar:
    """One line on stderr, redrawn in place; nothing if stderr is not a terminal, or `shown` is False."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown and sys.stderr.isatty()
        self._drawn, self._next_s = False, 0.0

    def show(self, epoch: int, done: int, samples: int) -> None:
        """Show that `done` of the epoch's `samples` have been trained on."""
        if not self.shown or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        full = round(WIDTH * done / samples)
        sys.stderr.write(f"\r{epoch + 1:5d}  {'#' * full}{'.' * (WIDTH - full)}  {done:,} of {samples:,} samples\x1b[K")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Remove the bar before other output."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
