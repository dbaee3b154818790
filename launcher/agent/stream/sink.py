"""Writes the agent stream. If that fails, lines are dropped and counted, and events wait for space.

Only the writer's thread calls this, as any write may take minutes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import stat
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

from ..named_tuple import NamedTuple
from ..protocol import encode_event
from ..system.files import ends_within_a_line
from .backlog import Backlog
from .sizes import RESERVED_BYTES

if TYPE_CHECKING:
    from .plain import Encoder

_AGAIN_S = 1.0
_REMEMBER_S = 5.0
_QUIET_S = 30.0
"""People see no heartbeats before this much silence; readers consider a connection dead after 60 s."""

_PIECE_BYTES = 64 * 1024
_MOST_PIECES = 1024
"""The kernel takes no more in one call."""

_LONG_EVENT_BYTES = RESERVED_BYTES // 4
_BLOCK_BYTES = 32 * 1024
"""Lines of one rank that are at least this long in all have their size before and after them."""

_REASONS = {
    errno.ENOSPC: "the disk of the run directory is full",
    errno.EDQUOT: "the quota for the run directory is used up",
    errno.EFBIG: "the stream has reached the maximum size of a file",
    errno.EPIPE: "the stream has no reader any more",
}


class Item(NamedTuple):
    """Whole lines of the stream: an event, or records of one worker's pipe."""

    data: Union[bytes, memoryview]
    tag: bytes = b""
    """Names the pipe, as in `1.5|`; empty for an event."""

    alike: bool = False
    """Whether all these lines are known to begin with the same mark."""

    @property
    def rank(self) -> int:
        """The rank whose records these are."""
        return int(self.tag[:-1].partition(b".")[2])

    def lines(self, start: int = 0) -> int:
        """How many of the worker's lines end in this item, from the record at `start` on."""
        data = bytes(self.data)
        pieces = data.count(b"\n" + self.tag + b"+", max(0, start - 1)) + (not start and self._is_piece(data, 0))
        return data.count(b"\n", start) - pieces

    def is_open(self, end: Optional[int] = None) -> bool:
        """Whether the last line is incomplete; only records up to `end` count."""
        if self.alike:
            return False
        data = bytes(self.data)
        return self._is_piece(data, data.rfind(b"\n", 0, (len(data) if end is None else end) - 1) + 1)

    def _is_piece(self, data: bytes, start: int) -> bool:
        return data.startswith(self.tag + b"+", start)


class Sink:
    """The stream's descriptor, with what is still to be written to it."""

    def __init__(self, fd: int, node: int, attempt: int, directory: str, encoder: Optional[Encoder] = None) -> None:
        """`directory`: the node's, in which the last words are kept. `encoder`: writes the stream for people."""
        self.wrote_at = time.monotonic()
        self._fd = fd
        self._about = {"node": node, **({"attempt": attempt} if attempt else {})}
        self._last_words = os.path.join(directory, "last_words")
        self._problem: Optional[OSError] = None
        self._backlog = Backlog(self._event)
        self._open: Dict[bytes, bool] = {}
        self._again_at = self._remember_at = 0.0
        self._blocks = 0
        self._encoder, self._unfinished = encoder, b""
        """What is missing of a line for people that was begun."""

    @property
    def patience_s(self) -> Optional[float]:
        """How long to wait for more items before calling `put` anyway; None: no limit."""
        return _AGAIN_S if self._problem or self._backlog.has_losses else None

    @property
    def needs_heartbeat(self) -> bool:
        """Whether a heartbeat is to be written; not among lines for people, which show that the agent lives."""
        return self._encoder is None or time.monotonic() - self.wrote_at > _QUIET_S

    def begin(self) -> None:
        """Reserve space for the last words, and end a line in the middle of which an earlier agent was killed."""
        mode = "r+b" if os.path.exists(self._last_words) else "wb"  # on a full disk, the existing space is all there is
        with contextlib.suppress(OSError), open(self._last_words, mode) as file:
            file.write(b"\n".rjust(RESERVED_BYTES))
        if _is_file(self._fd) and _ends_within_a_line(self._fd):
            self._backlog.write_on(b"\n", 0)
            self._tell()

    def put(self, items: Sequence[Item]) -> None:
        """Write the items, or as much as there is space for."""
        if (self._problem or self._backlog.has_losses) and time.monotonic() >= self._again_at:
            self._tell()
        if self._problem:
            self._take(items, 0)
        elif items:
            items = [framed for item in items for framed in self._framed(item)]
            self._take(items, self._write_each([item.data for item in items]))
        if self._problem and time.monotonic() >= self._remember_at:
            self.remember(())

    def _framed(self, item: Item) -> Sequence[Item]:
        """What to write of an item: many lines of one rank stand between two equal events, which tell their size."""
        if not item.tag:
            return (item._replace(data=self._backlog.counted(bytes(item.data))),)
        if not item.alike or len(item.data) < _BLOCK_BYTES or self._encoder is not None:
            return (item,)
        self._blocks += 1
        frame = Item(self._event("block", bytes=len(item.data), number=self._blocks))
        return frame, item, frame

    def lose(self, tag: bytes, lines: int, reason: str) -> None:
        """Count lines that are dropped."""
        self._backlog.lose(Item(b"", tag).rank, lines, reason)
        if self._open.pop(tag, False):
            self._backlog.close_line(tag)

    def warning(self, message: str) -> Item:
        """A warning event, to pass to `put`."""
        return Item(self._event("warning", message=message))

    def _event(self, name: str, **fields: Any) -> bytes:
        return encode_event(name, **self._about, **fields)

    def end(self) -> None:
        """Write everything there is space for, and the rest as last words."""
        if self._problem or self._backlog.has_losses:
            self._tell()
        if self._problem:
            self.remember(())

    def remember(self, events: Sequence[bytes]) -> None:
        """Store the latest events in the reserved space: these, or else the waiting ones."""
        self._remember_at = time.monotonic() + _REMEMBER_S
        lost = [self._backlog.lost_in_all(reason_of(self._problem))] if self._problem else []
        kept: List[bytes] = []
        room = RESERVED_BYTES - sum(map(len, lost)) - 1
        for event in map(_shortened, reversed(events or self._backlog.events())):
            room -= len(event)
            if room < 0:
                break
            kept.insert(0, event)
        self._fill_last_words(b"".join([*lost, *kept]))

    def _fill_last_words(self, text: bytes) -> None:
        with contextlib.suppress(OSError), open(self._last_words, "r+b") as file:
            file.write(text.ljust(RESERVED_BYTES - 1) + b"\n")

    def _write_each(self, pieces: List[Union[bytes, memoryview]]) -> int:
        """Write the pieces one after the other, as much as possible; to a file without a copy of them all."""
        done = 0
        if self._encoder is None and len(pieces) <= _MOST_PIECES and _is_file(self._fd):
            with contextlib.suppress(OSError):  # writing the rest fails, too, and says why
                done = os.writev(self._fd, pieces)
                self.wrote_at = time.monotonic()
            if done == sum(map(len, pieces)):
                return done
        return done + self._write(b"".join(pieces)[done:])

    def _write(self, data: bytes) -> int:
        """Write as much as possible; the number of bytes written. A line for people counts once it was begun."""
        if self._encoder is None:
            return self._write_bytes(data)
        self._unfinished = self._unfinished[self._write_bytes(self._unfinished) :]
        if self._unfinished:
            return 0
        text = self._encoder.encode(data)
        done = self._write_bytes(text)
        end = text.find(b"\n", done - 1) + 1 if done else 0
        self._unfinished = text[done:end]
        return sum(len(line) + 1 for line in data.split(b"\n")[: text.count(b"\n", 0, end)])

    def _write_bytes(self, data: bytes) -> int:
        view, done = memoryview(data), 0
        while done < len(data):
            try:
                done += os.write(self._fd, view[done : done + _PIECE_BYTES])
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)
            except OSError as error:
                self._problem = error
                self._again_at = time.monotonic() + _AGAIN_S
                break
            self.wrote_at = time.monotonic()
        return done

    def _take(self, items: Sequence[Item], written: int) -> None:
        """Account for these items, of which `written` bytes are in the stream."""
        for item in items:
            here, written = min(written, len(item.data)), max(0, written - len(item.data))
            if here == len(item.data):
                if item.tag:
                    self._open[item.tag] = item.is_open()
            elif not item.tag:
                self._backlog.wait(bytes(item.data), here)
            else:
                self._cut(item, bytes(item.data), here)

    def _cut(self, item: Item, data: bytes, here: int) -> None:
        """Handle records of which `here` bytes are in the stream: the cut one is to be completed, the rest is lost."""
        end = here
        if here and data[here - 1 : here] != b"\n":
            end = data.index(b"\n", here) + 1
            start = data.rfind(b"\n", 0, here) + 1
            self._backlog.write_on(data[start:end], here - start)
        if end:
            self._open[item.tag] = item.is_open(end)
        if end < len(data):
            self.lose(item.tag, item.lines(end), reason_of(self._problem))

    def _tell(self) -> None:
        """Write what has waited for space, line by line."""
        self._problem, had = None, self._problem
        while rest := self._backlog.next():
            if not self._backlog.written(self._write(rest)):
                return
        self._again_at = 0.0
        if had:
            self._fill_last_words(b"")


def reason_of(problem: Optional[OSError]) -> str:
    """Why lines are lost, as text for users."""
    number = problem.errno if problem else None
    return _REASONS.get(number or 0, f"the stream cannot be written: {os.strerror(number or 0)}")


def _shortened(event: bytes) -> bytes:
    """An event that fits into the reserved space with others: without the traceback if it is too long."""
    if len(event) > _LONG_EVENT_BYTES:
        fields = json.loads(event)
        if isinstance(fields.get("cause"), dict):
            fields["cause"]["traceback"] = None
            return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
    return event


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _ends_within_a_line(fd: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/self/fd/{fd}", "rb", buffering=0) as file:
        return ends_within_a_line(file)
    return False
