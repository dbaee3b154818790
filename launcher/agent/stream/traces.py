"""What a pipe keeps for the samples: the last line that tells the rank's progress, and what was read last."""

from __future__ import annotations

import time
from typing import Optional, Tuple

MARK = b"::distlaunch progress "
"""A line that contains this tells the progress."""


class Traces:
    """One pipe's traces."""

    def __init__(self) -> None:
        self.mark: Optional[Tuple[bytes, float]] = None
        """The last line with a mark, from the mark on, and when it was read."""

        self.latest: Tuple[bytes, float] = b"", 0.0
        """The last block, and when it was read."""

    def add(self, before: bytes, data: bytes) -> None:
        """Take what was read, after the beginning of a line: searching complete lines takes 12 us per 64 KiB."""
        now = time.monotonic()
        self.latest = data, now
        end = data.rfind(b"\n")
        at = data.rfind(MARK, 0, max(0, end)) if b":" in data else -1  # which takes a tenth of the time
        if at < 0 and before and end >= 0:
            data = before + data[: data.index(b"\n") + 1]
            at = data.find(MARK)
        if at >= 0:
            self.mark = data[at : data.find(b"\n", at)], now
