"""The only module that prints. Results go to stdout, everything else to stderr.

Foreign text (from hosts, schedulers, scripts, file names) reaches a terminal only through `plain`, which every message
passes here. Workers' own lines bypass it, and JSON is exact.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, StorageError
from launcher.system import listener, writing
from launcher.system.escapes import OURS, encode, plain, styled
from launcher.system.manner import Manner
from launcher.system.writing import LiveLine, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.errors import LaunchError
    from launcher.system.listener import Kind

ENVELOPE_VERSION = 1
FORMATS = ("human", "json", "jsonl", "id")
STDOUT, STDERR = 1, 2
_MAX_FOREIGN = 4000


class StdoutClosedError(Exception):
    """Our stdout has no reader any more (`| head`)."""


_manner = Manner()


def setup(*, command: str | None = None, fmt: str | None = None, verbosity: int | None = None) -> None:
    """Set the command's name for the envelope, the format (`human`, `json`), or the verbosity (-1 quiet, 1 verbose)."""
    if fmt is not None and fmt not in FORMATS:
        raise ConfigError(f"output {fmt!r} is not known", hint="known: " + ", ".join(FORMATS))
    _manner.command = _manner.command if command is None else command
    _manner.format = fmt or _manner.format
    _manner.verbosity = _manner.verbosity if verbosity is None else verbosity


def as_json() -> bool:
    """Whether stdout gets JSON and nothing else: one object or, as JSON lines, many."""
    return _manner.format in ("json", "jsonl")


def form() -> str:
    """The format of results, one of `FORMATS`."""
    return _manner.format


def draws(fd: int = STDOUT) -> bool:
    """Whether rich draws the output to this stream: for people, on a capable terminal."""
    return _colours(fd) and bool(os.environ.get("TERM")) and not as_json()


def result(data: Mapping[str, Any], *lines: str) -> None:
    """Print the result: the data in an envelope, or the lines. Raises `StdoutClosedError`."""
    if _manner.format == "id" and data.get("run"):
        lines = (str(data.get("job_id") or data["run"]),)
    _print(data, "".join(f"{plain(line)}\n" for line in lines))


@contextmanager
def after(what: str, hint: str | None = None, *, read: bool = False) -> Iterator[None]:
    """Wrap the printing of an action's result: if it fails (`read`: or has no reader), the error names the action."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error.message}; {what}", hint=hint) from error
    except StdoutClosedError as error:
        if not read:
            raise
        raise StorageError(f"no one reads stdout; {what}", hint=hint) from error


def document(data: Mapping[str, Any], text: str) -> None:
    """Print a result whose text may be redirected to a file: exact, except on a terminal."""
    if os.isatty(STDOUT):
        result(data, *text.rstrip("\n").split("\n"))
    else:
        _print(data, text if text.endswith("\n") else text + "\n")


def _print(data: Mapping[str, Any], words: str) -> None:
    text(_envelope(True, result=data) if as_json() else words)


def text(words: str) -> None:
    """Print this text to stdout, whatever the format. Raises `StdoutClosedError`."""
    if words:
        write(STDOUT, encode(words))
        drain()
    if words and (reason := _manner.closed.get(STDOUT)) is not None:
        if reason.errno == errno.EPIPE:
            raise StdoutClosedError
        raise StorageError(f"cannot write to stdout: {reason.strerror}")


def json_line(data: Mapping[str, Any]) -> bool:
    """Print one object of JSON lines. Returns False once stdout has no reader."""
    return write(STDOUT, encode(json.dumps(data) + "\n"))


def failed_result(
    code: str, message: str, hint: str | None, data: Mapping[str, Any] | None = None, *, if_none: bool = False
) -> None:
    """Print the envelope of a command that failed, with JSON. `if_none`: if there is none yet, and stdout is read."""
    if as_json() and not (if_none and _manner.has_ended):
        _manner.blocks &= not if_none
        error = {"code": code, "message": message, "hint": hint}
        write(STDOUT, encode(_envelope(False, error=error, **({} if data is None else {"result": data}))), message=True)


def error(failure: LaunchError) -> None:
    """Print `error[code]: message` and the hint on stderr; with JSON, also the envelope on stdout."""
    _say(f"{paint(f'error[{failure.code}]', 'red')}: {failure.message}")
    if failure.hint:
        _say(f"  {paint('hint', 'bold')}: {failure.hint}")
    failed_result(failure.code, failure.message, failure.hint)


def bug(trace: str, *, ends: bool = True) -> None:
    """Print a traceback as a bug in distlaunch. `ends`: it is the command's result, too."""
    _say(*(f"  {line}" for line in trace.rstrip("\n").split("\n")))
    message = "this is a bug in distlaunch, not in your request; please report it with the lines above"
    _say(f"{paint('error[bug]', 'red')}: {message}")
    if ends:
        failed_result("bug", trace.strip().splitlines()[-1], message)


def note(*lines: str) -> None:
    """Print lines on stderr, unless -q."""
    if not _told("note", *lines) and _manner.verbosity >= 0:
        _say(*lines)


def detail(text: str) -> None:
    """Print a line on stderr with -v."""
    if not _told("detail", text) and _manner.verbosity > 0:
        _say(paint(text, "dim"))


def warn(text: str, *more: str) -> None:
    """Print a warning on stderr, even with -q. `more`: its further lines."""
    if not _told("warning", text, *more):
        _say(f"{paint('warning', 'yellow')}: {text}", *more)


def report(*lines: str) -> None:
    """Print the closing lines of a failed run on stderr, even with -q."""
    if not _told("warning", *lines):
        _say(*lines)


def _told(kind: Kind, *lines: str) -> bool:
    """Pass the message to a listener that replaces stderr. Returns whether there is one."""
    return listener.told(kind, *(OURS.sub("", line) for line in lines))


def foreign(where: str, data: bytes, *, important: bool = True) -> None:
    """Print a line that neither an agent nor a worker wrote: from a scheduler, ssh, or a damaged stream."""
    text = data.rstrip(b"\r").replace(b"\0", b"").decode(errors="surrogateescape")
    more = f" [... {len(text) - _MAX_FOREIGN} characters more]" if len(text) > _MAX_FOREIGN else ""
    if text or not data:
        (note if important else detail)(f"[{where}] {text[:_MAX_FOREIGN]}{more}")


def paint(text: str, style: str, fd: int = STDERR) -> str:
    """The text in this style if the stream is a terminal and NO_COLOR is not set."""
    return styled(text, style) if _colours(fd) else text


def _colours(fd: int) -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and os.isatty(fd)


def columns(fd: int = STDOUT) -> int:
    """The width of the terminal on this stream; without one, COLUMNS or 80."""
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        given = os.environ.get("COLUMNS", "")
        return int(given) if given.isdecimal() and int(given) else 80


def write(fd: int, *parts: bytes | memoryview, message: bool = False) -> bool:
    """Write all bytes unchanged; a message on a line of its own. Returns False once they have no reader."""
    if fd in _manner.closed:
        return False
    with _manner.lines.lock:
        parts = _manner.lines.next(fd, parts, message=message)
        if _manner.writer is not None:
            _manner.writer.put(fd, *parts)
            return True
    with _manner.lines.interrupted(fd, parts):
        return _write_now(fd, *parts)


def progress(text: str, part: tuple[int, int] | None = None) -> None:
    """Report what the current wait is for, if that is shown. `part`: the amount done, and the total."""
    if _manner.progress is not None:
        _manner.progress(text, part)


def progress_by(show: Callable[[str, tuple[int, int] | None], None] | None) -> None:
    """Set the function that `progress` calls."""
    _manner.progress = show


def expect_live() -> None:
    """Prepare for a live line, which is withdrawn before anything is written to a terminal."""
    _manner.live = _manner.live or LiveLine()


def draw_live(line: str, wanted: Callable[[], bool]) -> None:
    """Draw this live line on stderr, unless a worker's line is open or the live line is no longer `wanted`."""
    if _manner.live is not None and not congested() and STDERR not in _manner.closed:
        with contextlib.suppress(OSError):
            _manner.live.draw(STDERR, line.encode(), wanted)


def clear_live() -> None:
    """Remove the live line."""
    if _manner.live is not None:
        with contextlib.suppress(OSError):
            _manner.live.clear()


def drain(limit_s: float = float("inf")) -> None:
    """Wait until all output is written or has no reader, for at most `limit_s`."""
    if _manner.writer is not None:
        _manner.writer.drain(limit_s)


def congested() -> bool:
    """Whether output waits to be written and may still be read, so that no more should be produced for now."""
    writer = _manner.writer
    return writer is not None and writer.waiting > writing.BACKLOG_BYTES and not writer.given_up


@contextmanager
def in_background(stopping: Callable[[], bool], write: Callable[..., object] | None = None) -> Iterator[None]:
    """Print in a thread, so that a waiting pager, a full pipe or a stopped terminal blocks nothing else.

    On exit, wait until all output is written; once `stopping` is true, only while it is being read. `write` writes it,
    and knows what to do if that fails.
    """
    writer = _manner.writer = Writer(stopping, write or _write_now)
    try:
        yield
    finally:
        try:
            writer.drain()
        finally:
            _manner.writer = None
            if writer.waiting and writer.given_up and _manner.give_up(writer):
                warn(f"stdout is no longer written: {_manner.closed[STDOUT].strerror}")
            writer.put(-1, b"")


def _write_now(fd: int, *parts: bytes | memoryview) -> bool:
    """Write all bytes. Returns False once they have no reader."""
    if not _manner.takes(fd):
        return False
    try:
        if _manner.live is not None and os.isatty(fd):
            _manner.live.write(fd, *parts)
        else:
            writing.write_all(fd, *parts)
    except OSError as reason:
        # Also a closed terminal (EIO) or a full disk: printing must not end a run that is followed.
        _manner.closed[fd] = reason
        if fd == STDOUT and reason.errno != errno.EPIPE:
            warn(f"stdout is no longer written: {reason.strerror}")
        return False
    return True


def _say(*lines: str) -> None:
    """Print lines. Only indented parts of a text become lines, so that foreign text cannot look like our messages."""
    parts = (part for line in lines for part in re.split(r"\n(?=  )", line))
    write(STDERR, encode("".join(f"{plain(part)}\n" for part in parts)), message=True)


def _envelope(ok: bool, **content: Any) -> str:
    _manner.has_ended = True
    whole = {"version": ENVELOPE_VERSION, "command": _manner.command, "ok": ok, **content}
    if _manner.format == "jsonl":
        return json.dumps({"type": "result", **whole}) + "\n"
    return json.dumps(whole, indent=1 if os.isatty(STDOUT) else None) + "\n"
