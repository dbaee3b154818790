"""The only module that prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import json
import os
import queue
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


def result(data: Mapping[str, Any], text: str) -> None:
    """Print what was asked for: the data in an envelope, or the text. Raises `StdoutClosedError`."""
    if as_json():
        text = _envelope(True, result=data)
    if text:
        write(STDOUT, _encode(text if text.endswith("\n") else text + "\n"))
        if _manner.writer is not None:
            _manner.writer.drain()
    if text and (reason := _manner.closed.get(STDOUT)) is not None:
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
    _say(trace.rstrip("\n"))
    message = "this is a bug in distlaunch, not in your request; please report it with the lines above"
    _say(f"{paint('error[bug]', 'red')}: {message}")
    if as_json():
        last = trace.strip().splitlines()[-1]
        write(STDOUT, _encode(_envelope(False, error={"code": "bug", "message": last, "hint": message})))


def note(text: str) -> None:
    """Something worth a line on stderr, unless -q."""
    if _manner.verbosity >= 0:
        _say(text)


def detail(text: str) -> None:
    """Something for -v."""
    if _manner.verbosity > 0:
        _say(paint(text, "dim"))


def warn(text: str) -> None:
    """Something that a person should know, also with -q."""
    _say(f"{paint('warning', 'yellow')}: {text}")


def report(text: str) -> None:
    """The closing lines of a run that failed: on stderr, also with -q."""
    _say(text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned with blanks; control characters are escaped, so that a row is a line."""
    cells = [[*header], *([_cell(value) for value in row] for row in rows)]
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
    return f"\033[{_STYLES[style]}m{text}\033[0m"


def write(fd: int, data: bytes) -> bool:
    """Write all bytes, as they are; False once nobody reads them."""
    if fd in _manner.closed:
        return False
    if _manner.writer is None:
        return _write_now(fd, data)
    _manner.writer.put(fd, data)
    return True


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
        with self._lock:
            if self.waiting > _BACKLOG_BYTES and self.given_up:
                return
            if not self.waiting:
                self._moved = time.monotonic()
            self._given += len(data)
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


def open_standard_streams() -> None:
    """Give a process started with `>&-` something on 0, 1 and 2, lest the next file it opens be taken for stdout."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _say(text: str) -> None:
    write(STDERR, _encode(text + "\n"))


def _encode(text: str) -> bytes:
    """UTF-8; bytes that came in with surrogateescape go out as they were."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")


def _envelope(ok: bool, **content: Any) -> str:
    whole = {"version": ENVELOPE_VERSION, "command": _manner.command, "ok": ok, **content}
    return json.dumps(whole, indent=1 if os.isatty(STDOUT) else None) + "\n"


def _cell(value: object) -> str:
    text = "-" if value is None else str(value)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
