"""Programs that outlive the process that starts them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, BinaryIO

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.system.processes import start_ticks
from launcher.errors import CommandError
from launcher.system import hangup, input_file, proc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_LOOK_MS = 5
_ENDS_S = 2.0
_HEARS_S = 10.0
"""How long a program may take to read its start line. If a slower one fails, following the run reveals that."""

_left: set[int] = set()
"""Pids of programs that are no longer looked at; each is our child, and a zombie at its end while we run."""


class Place(NamedTuple):
    """Where a program runs, its files for output, and what records it before it begins."""

    cwd: str
    stdout: Path
    stderr: Path
    record: Callable[[proc.Identity], None]


class Told:
    """A program that begins when it gets a line on stdin."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], stderr: Path, before: int = 0) -> None:
        """`before`: the size of its stderr file before it was started."""
        assert process.stdin
        self._name, self._process, self._go, self._stderr, self._before = name, process, process.stdin, stderr, before

    def close(self) -> None:
        """Close its stdin."""
        self._go.close()
        _left.add(self._process.pid)

    def tell(self, what: bytes = b"") -> None:
        """Send the line. Raises `CommandError` if the program has exited."""
        try:
            self._go.write(what + b"\n")
        except BrokenPipeError:
            raise self.ended() from None

    def wait(self) -> None:
        """Wait until the program has read the line, within a limit. Raises `CommandError` if it exits before."""
        limit = time.monotonic() + _HEARS_S
        poller = select.poll()
        poller.register(self._go, 0)  # a missing reader is always reported
        while self._unread() and time.monotonic() < limit:
            if poller.poll(_LOOK_MS) and self._unread():
                raise self.ended()

    def ended(self) -> CommandError:
        """The error for a program that exited before it began, with the last lines on its stderr."""
        self._process.returncode = None
        how = "has closed its stdin"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_ENDS_S)
            how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        self._process.returncode = self._process.returncode or 0
        said = b""
        with contextlib.suppress(OSError), open(self._stderr, "rb") as file:
            file.seek(max(self._before, file.seek(0, os.SEEK_END) - proc.LAST_BYTES))
            said = file.read()
        last = proc.last_words(said.decode(errors="replace"))
        words = ": ".join(filter(None, (f"{how} right after it was started", last)))
        return CommandError(f"{self._name} {words}", hint=f"see {self._stderr}")

    def _unread(self) -> int:
        return int.from_bytes(fcntl.ioctl(self._go, termios.FIONREAD, bytes(4)), sys.byteorder)


def start_detached(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    record: Callable[[proc.Identity], None],
    told: list[Told] | None = None,
    stdin: int | None = None,
) -> proc.Identity:
    """Start a program that outlives us, in its own session, with its output in files.

    The program must begin when it reads a line on stdin, and exit if there is none. The line is sent once `record` has
    returned. With `stdin` the program also gets that descriptor, under the number in its last argument, `--stdin`.
    The program is appended to `told`, so that the caller can wait until it has begun.
    """
    _reap()
    process, before = _spawned(argv, cwd=cwd, env=env, stdout=stdout, stderr=stderr, stdin=stdin)
    with contextlib.ExitStack() as stack:
        word = Told(argv[0], process, stderr, before)
        stack.callback(word.close)
        ticks = start_ticks(process.pid)
        process.returncode = 0  # found by identity, not waited for: Popen must not warn when it is collected
        if ticks is None:
            raise word.ended()
        identity = proc.Identity(process.pid, ticks)
        record(identity)
        word.tell()
        if told is not None:
            told.append(word)
            stack.pop_all()
    return identity


def _reap() -> None:
    for pid in list(_left):
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _left.discard(pid)


def private(path: Path) -> BinaryIO:
    """The file, opened to append; a new one is private."""
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def _spawned(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdout: Path, stderr: Path, stdin: int | None
) -> tuple[subprocess.Popen[bytes], int]:
    """The program, and the size of its stderr file before it started."""
    try:
        for path in filter(os.path.exists, (stdout, stderr)):  # from an earlier attempt
            input_file.check(path)
        with contextlib.ExitStack() as stack, private(stdout) as out, private(stderr) as err:
            before = err.tell()
            own = [] if stdin is None else [os.dup(stdin)]
            for fd in own:
                stack.callback(os.close, fd)
            stack.enter_context(hangup.as_found())
            process = subprocess.Popen(
                [*argv, *(word for fd in own for word in ("--stdin", str(fd)))],
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                bufsize=0,
                start_new_session=True,
                pass_fds=own,
            )
    except OSError as error:
        of_ours = str(error.filename) in (str(stdout), str(stderr))
        why = f"{error.filename}: {error.strerror}" if of_ours else error.strerror
        raise CommandError(f"{argv[0]} cannot be started: {why}", hint=f"working directory: {cwd}") from error
    return process, before
