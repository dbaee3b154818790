"""The only module that prints. Results go to stdout, everything else to stderr.

What others wrote (hosts, schedulers, scripts, whoever named a file) reaches a terminal through `plain` alone, which every word of
ours passes here; workers' own lines go past it, and JSON is exact.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import re
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from launcher.errors import LaunchError

ENVELOPE_VERSION = 1
FORMATS = ("human", "json")
STDOUT, STDERR = 1, 2
_BACKLOG_BYTES = 8 << 20
_PART_BYTES = 4096
_STUCK_S = 1.0
_DRAIN_LOOK_S = 0.002
_STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}
_MARK = "".join(chr(0xFDD0 + byte % 32) for byte in os.urandom(8))
"""Stands for the beginning of an escape of ours, until it is written: no text can hold one that nobody outside knows."""

_OURS = re.compile(f"({_MARK}[0-9]+m)")
_MAX_FOREIGN = 4000


class StdoutClosedError(Exception):
    """Nobody reads our stdout any more (`| head`)."""


@dataclass(slots=True)
class _Manner:
    """How this process prints; `setup` changes it."""

    command: str = ""
    format: str = "human"
    verbosity: int = 0
    closed: dict[int, OSError] = field(default_factory=dict)
    """Streams that can no longer be written, with the reason."""

    writer: _Writer | None = None


_manner = _Manner()


def setup(*, command: str | None = None, fmt: str | None = None, verbosity: int | None = None) -> None:
    """Set what is given: the command's name for the envelope, `human` or `json`, and -1 (quiet) to 1 (verbose)."""
    if fmt is not None and fmt not in FORMATS:
        raise ConfigError(f"output {fmt!r} is not known", hint="known: " + ", ".join(FORMATS))
    _manner.command = _manner.command if command is None else command
    _manner.format = fmt or _manner.format
    _manner.verbosity = _manner.verbosity if verbosity is None else verbosity


def as_json() -> bool:
    """Whether stdout gets one JSON object and nothing else."""
    return _manner.format == "json"


def result(data: Mapping[str, Any], *lines: str) -> None:
    """Print what was asked for: the data in an envelope, or the lines. Raises `StdoutClosedError`."""
    _print(data, "".join(f"{plain(line)}\n" for line in lines))


@contextmanager
def after(what: str, hint: str | None = None, *, read: bool = False) -> Iterator[None]:
    """For results of something that was done: where they cannot be printed, or `read`, the error says what."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error.message}; {what}", hint=hint) from error
    except StdoutClosedError as error:
        if not read:
            raise
        raise StorageError(f"nobody reads stdout; {what}", hint=hint) from error


def document(data: Mapping[str, Any], text: str) -> None:
    """The same with a text that may be redirected to a file: exact, but on a terminal."""
    if os.isatty(STDOUT):
        result(data, *text.rstrip("\n").split("\n"))
    else:
        _print(data, text if text.endswith("\n") else text + "\n")


def _print(data: Mapping[str, Any], words: str) -> None:
    text(_envelope(True, result=data) if as_json() else words)


def text(words: str) -> None:
    """Print that to stdout, whatever the format. Raises `StdoutClosedError`."""
    if words:
        write(STDOUT, _encode(words))
        drain()
    if words and (reason := _manner.closed.get(STDOUT)) is not None:
        if reason.errno == errno.EPIPE:
            raise StdoutClosedError
        raise StorageError(f"cannot write to stdout: {reason.strerror}")


def failed_result(code: str, message: str, hint: str | None, data: Mapping[str, Any]) -> None:
    """The envelope of a command that worked as it should and whose outcome is a failure; nothing for people."""
    if as_json():
        error = {"code": code, "message": message, "hint": hint}
        write(STDOUT, _encode(_envelope(False, error=error, result=data)))


def error(failure: LaunchError) -> None:
    """`error[code]: message` and the hint on stderr; with JSON the envelope on stdout as well."""
    _say(f"{paint(f'error[{failure.code}]', 'red')}: {failure.message}")
    if failure.hint:
        _say(f"  {paint('hint', 'bold')}: {failure.hint}")
    failed = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    if as_json():
        write(STDOUT, _encode(_envelope(False, error=failed)))


def bug(trace: str) -> None:
    """A traceback, said to be our fault."""
    _say(*(f"  {line}" for line in trace.rstrip("\n").split("\n")))
    message = "this is a bug in distlaunch, not in your request; please report it with the lines above"
    _say(f"{paint('error[bug]', 'red')}: {message}")
    if as_json():
        last = trace.strip().splitlines()[-1]
        write(STDOUT, _encode(_envelope(False, error={"code": "bug", "message": last, "hint": message})))


def note(*lines: str) -> None:
    """Something worth a line, or some, on stderr, unless -q."""
    if _manner.verbosity >= 0:
        _say(*lines)


def detail(text: str) -> None:
    """Something for -v."""
    if _manner.verbosity > 0:
        _say(paint(text, "dim"))


def warn(text: str) -> None:
    """Something that a person should know, also with -q."""
    _say(f"{paint('warning', 'yellow')}: {text}")


def report(*lines: str) -> None:
    """The closing lines of a run that failed: on stderr, also with -q."""
    _say(*lines)


def foreign(where: str, data: bytes, *, important: bool = True) -> None:
    """A line that no agent and no worker wrote: a scheduler, ssh, or what is left of a stream that was damaged."""
    text = data.rstrip(b"\r").replace(b"\0", b"").decode(errors="surrogateescape")
    more = f" [... {len(text) - _MAX_FOREIGN} characters more]" if len(text) > _MAX_FOREIGN else ""
    if text or not data:
        (note if important else detail)(f"[{where}] {text[:_MAX_FOREIGN]}{more}")


def plain(text: object) -> str:
    """One line that a terminal only shows: whatever is not printable is written as Python does, line ends and C1 codes, too.

    So are characters that reorder or hide others (bidi, zero width), and bytes that are no UTF-8.
    """
    found = str(text)
    if found.isprintable():
        return found
    parts = _OURS.split(found)
    return "".join(part if number % 2 else "".join(map(_shown, part)) for number, part in enumerate(parts))


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\x{ord(char) - 0xDC00:02x}" if 0xDC80 <= ord(char) <= 0xDCFF else repr(char)[1:-1]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned with blanks; control characters are escaped, so that a row is a line."""
    cells = [[*map(plain, header)], *(["-" if value is None else plain(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"


def size(count: float) -> str:
    """Bytes for people: `12 KB`."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def paint(text: str, style: str, fd: int = STDERR) -> str:
    """The text in a colour where the stream is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not os.isatty(fd):
        return text
    return f"{_MARK}{_STYLES[style]}m{text}{_MARK}0m"


def write(fd: int, data: bytes) -> bool:
    """Write all bytes, as they are; False once nobody reads them."""
    if fd in _manner.closed:
        return False
    if _manner.writer is None:
        return _write_now(fd, data)
    _manner.writer.put(fd, data)
    return True


def drain() -> None:
    """Wait until all is written that was to be, or nobody reads it."""
    if _manner.writer is not None:
        _manner.writer.drain()


def congested() -> bool:
    """Whether so much waits to be written that no more should be made, as somebody may still read it."""
    writer = _manner.writer
    return writer is not None and writer.waiting > _BACKLOG_BYTES and not writer.given_up


@contextmanager
def in_background(stopping: Callable[[], bool]) -> Iterator[None]:
    """A pager that waits, a full pipe, a stopped terminal: in here they keep a thread of ours waiting, and nobody else.

    In the end what was printed is waited for; once `stopping` is true, only while somebody reads on.
    """
    writer = _manner.writer = _Writer(stopping)
    try:
        yield
    finally:
        try:
            writer.drain()
        finally:
            _manner.writer = None
            writer.put(-1, b"")
            if writer.waiting:  # nothing that is said now may wait, either
                _manner.closed.update({fd: OSError(errno.EAGAIN, "nobody reads it") for fd in (STDOUT, STDERR)})


class _Writer:
    """A thread that writes what it is given, in its order."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._queue: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()  # may be put to by a signal's handler
        self._given = self._written = 0
        self._lock = threading.RLock()
        self._moved = time.monotonic()
        threading.Thread(target=self._run, name="printing", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        return self._given - self._written

    @property
    def given_up(self) -> bool:
        """We are to stop, and nobody has read anything for a while."""
        return self._stopping() and time.monotonic() - self._moved > _STUCK_S

    def put(self, fd: int, data: bytes) -> None:
        """Write that, too; what nobody reads is not kept without end."""
        size = len(data)  # before the sum: a signal's handler that runs at this call may add to it as well
        with self._lock:
            if self.waiting > _BACKLOG_BYTES and self.given_up:
                return
            if not self.waiting:
                self._moved = time.monotonic()
            self._given += size
        self._queue.put((fd, data))

    def drain(self) -> None:
        """Wait until all is written, or given up."""
        while self.waiting and not self.given_up:
            time.sleep(_DRAIN_LOOK_S)

    def _run(self) -> None:
        while True:
            fd, data = self._queue.get()
            if fd < 0:
                return
            for start in range(0, len(data), _PART_BYTES):
                part = data[start : start + _PART_BYTES]
                if fd not in _manner.closed:
                    _write_now(fd, part)
                self._written += len(part)
                self._moved = time.monotonic()


def _write_now(fd: int, data: bytes) -> bool:
    """Write all bytes; a slow non-blocking pipe or terminal is waited for."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)
        except OSError as reason:
            # Also a terminal that is gone (EIO) or a full disk: a run that is followed must not die of its printing.
            _manner.closed[fd] = reason
            if fd == STDOUT and reason.errno != errno.EPIPE:
                warn(f"stdout is written no more: {reason.strerror}")
            return False
    return True


def _say(*lines: str) -> None:
    """Each is a line. Further lines of one text are kept where they are indented, so that none looks like a word of ours."""
    parts = (part for line in lines for part in re.split(r"\n(?=  )", line))
    write(STDERR, _encode("".join(f"{plain(part)}\n" for part in parts)))


def _encode(text: str) -> bytes:
    """UTF-8, with our own escapes; bytes that came in with surrogateescape go out as they were."""
    text = text.replace(_MARK, "\033[")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")


def _envelope(ok: bool, **content: Any) -> str:
    whole = {"version": ENVELOPE_VERSION, "command": _manner.command, "ok": ok, **content}
    return json.dumps(whole, indent=1 if os.isatty(STDOUT) else None) + "\n"
