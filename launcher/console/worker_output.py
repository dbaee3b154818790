"""Shows workers' lines on the terminal: bytes unchanged, and no line broken by another rank's."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.protocol import line_mark

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from launcher.agent.protocol import Event, Output
    from launcher.runs.reader import MarkedLines

MAX_HELD_BYTES = 64 * 1024
MAX_HELD_S = 2.0
MAX_HELD_IN_ALL_BYTES = 64 << 20
_HELD_COST_BYTES = 500
"""Memory of a held piece besides its bytes: a node may name any number of ranks."""

BATCH_BYTES = 1 << 20
_JOINED_BYTES, _MOST_PARTS = 64 * 1024, 256
"""A batch is copied into one if it has no more bytes, or more parts: each costs a write as much as copying some KB."""

_PROMPT_S = 0.1
"""A prompt is whole if nothing follows for this time: some are written a character at a time."""

_PROMPT_LIMIT_S = 1.0


class WorkerOutput:
    """Workers' stdout goes to our stdout, their stderr to our stderr; with JSON on stdout everything goes to stderr.

    A single rank is passed through at once, byte by byte, so that progress bars work. Lines of several ranks are marked
    `[node:rank]`, and an incomplete line is held for a while until the rest arrives.
    """

    def __init__(self, ranks: AbstractSet[int] | None, *, stdout: int | None = None) -> None:
        """`ranks`: those that will be shown, None for all. `stdout`: the file descriptor for their stdout."""
        self.ranks = ranks
        self._alone = ranks is not None and len(ranks) == 1
        self._stdout = stdout or (output.STDERR if output.as_json() else output.STDOUT)
        self._held: dict[tuple[int, int, bool], tuple[bytes, float]] = {}
        self._held_bytes = 0
        self._open: dict[int, bool] = {}
        self._batch: list[bytes | memoryview] = []
        self._batch_bytes, self._batch_fd = 0, self._stdout
        self._passed_at = 0.0
        self.shown = False
        self.closed = False
        """The workers' stdout has no reader any more."""

    def show(self, record: Output, now: float) -> None:
        """Write the record's lines, or hold an incomplete one for a while; `now` in seconds."""
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
            # Its first part becomes a line of its own, to bound memory and delay.
            self._write_lines(key, data)
        else:
            self._held[key] = (data, since)
            self._held_bytes += len(data) + _HELD_COST_BYTES
            if self._held_bytes > MAX_HELD_IN_ALL_BYTES:
                self.flush(float("inf"))

    def show_lines(self, lines: MarkedLines, now: float) -> None:
        """Write many lines of one rank: the stream has them as they are shown here."""
        if self._alone or (lines.node, lines.rank, False) in self._held:
            self.show(lines.output(), now)
        else:
            self.shown = True
            self._write(False, lines.data)

    def event(self, node: int, record: Event) -> None:
        """An event is not a worker's output; JSON lines have it."""

    def state(self, state: str, detail: str) -> None:
        """A run's state is not a worker's output; JSON lines have it."""

    def pass_on(self, fd: int, data: bytes) -> None:
        """Write bytes from a connection instead of a stream, from any thread."""
        output.write(fd, data)
        self._open[fd], self._passed_at = not data.endswith(b"\n"), time.monotonic()

    def finish_prompt(self) -> None:
        """Wait until a prompt that comes by `pass_on` is whole, for a second at most."""
        limit = time.monotonic() + _PROMPT_LIMIT_S
        while time.monotonic() < min(limit, self._passed_at + _PROMPT_S) and any(self._open.values()):
            time.sleep(_PROMPT_S / 4)

    def hand_over(self, rank: int) -> None:
        """Write held parts of that rank's lines without a newline: `pass_on` gets the rest."""
        for key in [key for key in self._held if key[1] == rank]:
            self._write(key[2], line_mark(*key[:2]) + self._take(key)[0])
        self._write_out()

    def _take(self, key: tuple[int, int, bool]) -> tuple[bytes, float]:
        """Remove and return what is held of a line, and since when."""
        held = self._held.pop(key)
        self._held_bytes -= len(held[0]) + _HELD_COST_BYTES
        return held

    def flush(self, now: float) -> None:
        """Write out what was shown, and held parts of lines that have waited long enough, each as its own line."""
        for key, (_, since) in list(self._held.items()):
            if now - since >= MAX_HELD_S:
                self._write_lines(key, self._take(key)[0])
        self._write_out()

    def close(self) -> None:
        """Write what is still held, and end a line that was left open on a terminal."""
        self.flush(float("inf"))
        self.end_line()

    def end_line(self) -> None:
        """Start a new line if a worker left the terminal in the middle of one, before other output."""
        self._write_out()
        for fd in (self._stdout, output.STDERR):
            if self._open.get(fd) and os.isatty(fd):
                output.write(fd, b"\n")
                self._open[fd] = False

    def _write_lines(self, key: tuple[int, int, bool], lines: bytes) -> None:
        mark = line_mark(*key[:2])
        self._write(key[2], mark + lines.replace(b"\n", b"\n" + mark) + b"\n")

    def _write(self, stderr: bool, data: bytes | memoryview) -> None:
        # Batches keep the order, and a million short lines do not cost a million writes.
        fd = output.STDERR if stderr else self._stdout
        if fd != self._batch_fd or self._batch_bytes + len(data) > BATCH_BYTES:
            self._write_out()
            self._batch_fd = fd
        self._batch.append(data)
        self._batch_bytes += len(data)
        self._open[fd] = data[-1:] != b"\n"

    def _write_out(self) -> None:
        parts, size = self._batch, self._batch_bytes
        self._batch, self._batch_bytes = [], 0
        if size <= _JOINED_BYTES or len(parts) > _MOST_PARTS:
            parts = [b"".join(parts)]
        if size and not output.write(self._batch_fd, *parts) and self._batch_fd == self._stdout:
            self.closed = True
