"""Shows workers' lines on the terminal: bytes as they are, never a line cut by another rank's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher import output

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from launcher.agent.protocol import Output

MAX_HELD_BYTES = 64 * 1024
MAX_HELD_S = 2.0
MAX_HELD_IN_ALL_BYTES = 64 << 20
_HELD_COST_BYTES = 500
"""What a held piece costs beside its bytes: a node may name any number of ranks."""

BATCH_BYTES = 64 * 1024


class WorkerOutput:
    """Workers' stdout goes to our stdout, their stderr to our stderr; with JSON on stdout everything goes to stderr.

    One rank alone is passed through at once, byte by byte as it came, so that progress bars work. Lines of several ranks
    are marked `[node:rank]`, and a piece of a line waits for the rest of it, for a while.
    """

    def __init__(self, ranks: AbstractSet[int] | None, *, stdout: int | None = None) -> None:
        """`ranks` are those that will be shown, None for all; `stdout` is where their stdout goes."""
        self.ranks = ranks
        self._alone = ranks is not None and len(ranks) == 1
        self._stdout = stdout or (output.STDERR if output.as_json() else output.STDOUT)
        self._held: dict[tuple[int, int, bool], tuple[bytes, float]] = {}
        self._held_bytes = 0
        self._open: dict[int, bool] = {}
        self._batch, self._batch_fd = bytearray(), self._stdout
        self.shown = False
        self.closed = False
        """Nobody reads the workers' stdout any more."""

    def show(self, record: Output, now: float) -> None:
        """Write the record's lines, or keep its piece of one until `now` (seconds) is late enough."""
        self.shown = True
        if self._alone:
            self._write(record.stderr, record.data + b"\n" if record.ends_line else record.data)
            return
        key = (record.node, record.rank, record.stderr)
        before, since = self._take(key) if key in self._held else (b"", now)
        data = before + record.data
        if record.ends_line:
            self._write_lines(key, data)
        elif len(data) >= MAX_HELD_BYTES:
            # Its first part becomes a line of its own: memory is bounded, and so is a person's patience.
            self._write_lines(key, data)
        else:
            self._held[key] = (data, since)
            self._held_bytes += len(data) + _HELD_COST_BYTES
            if self._held_bytes > MAX_HELD_IN_ALL_BYTES:
                self.flush(float("inf"))

    def pass_on(self, fd: int, data: bytes) -> None:
        """Bytes for a terminal that did not come out of a stream; from any thread."""
        output.write(fd, data)
        self._open[fd] = not data.endswith(b"\n")

    def hand_over(self, rank: int) -> None:
        """Write what is held of that rank's lines as it is: the rest of them is passed on."""
        for key in [key for key in self._held if key[1] == rank]:
            self._write(key[2], _mark(key) + self._take(key)[0])
        self._write_out()

    def _take(self, key: tuple[int, int, bool]) -> tuple[bytes, float]:
        """What is held of a line, and since when; it is held no more."""
        held = self._held.pop(key)
        self._held_bytes -= len(held[0]) + _HELD_COST_BYTES
        return held

    def flush(self, now: float) -> None:
        """Write out what was shown, and as lines of their own the pieces that have waited long enough."""
        for key, (_, since) in list(self._held.items()):
            if now - since >= MAX_HELD_S:
                self._write_lines(key, self._take(key)[0])
        self._write_out()

    def close(self) -> None:
        """Write what is still held, and end a line that was left open on a terminal."""
        self.flush(float("inf"))
        self.end_line()

    def end_line(self) -> None:
        """Go to a new line where a worker left the terminal in the middle of one: something else is to be written."""
        self._write_out()
        for fd in (self._stdout, output.STDERR):
            if self._open.get(fd) and os.isatty(fd):
                output.write(fd, b"\n")
                self._open[fd] = False

    def _write_lines(self, key: tuple[int, int, bool], lines: bytes) -> None:
        mark = _mark(key)
        self._write(key[2], mark + lines.replace(b"\n", b"\n" + mark) + b"\n")

    def _write(self, stderr: bool, data: bytes) -> None:
        # In batches: the order is kept, and a million short lines are not a million writes.
        fd = output.STDERR if stderr else self._stdout
        if fd != self._batch_fd or len(self._batch) > BATCH_BYTES:
            self._write_out()
            self._batch_fd = fd
        self._batch += data
        self._open[fd] = not data.endswith(b"\n")

    def _write_out(self) -> None:
        batch, self._batch = bytes(self._batch), bytearray()
        if batch and not output.write(self._batch_fd, batch) and self._batch_fd == self._stdout:
            self.closed = True


def _mark(key: tuple[int, int, bool]) -> bytes:
    return b"[%d:%d] " % key[:2]
