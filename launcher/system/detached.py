"""Programs that outlive the one that starts them."""

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

from launcher.agent.system.processes import start_ticks
from launcher.errors import CommandError
from launcher.system import input_file, proc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_LOOK_MS = 5
_ENDS_S = 2.0
_HEARS_S = 10.0
"""An interpreter that is a script, and loads modules, may take longer; then whoever follows the run hears of its end."""


class Told:
    """A program that was told to begin on its stdin."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], stderr: Path, before: int) -> None:
        assert process.stdin
        self._name, self._process, self._go, self._stderr, self._before = name, process, process.stdin, stderr, before

    def close(self) -> None:
        """Let go of its stdin."""
        self._go.close()

    def tell(self) -> None:
        """Tell it; `CommandError` where it has ended."""
        try:
            self._go.write(b"\n")
        except BrokenPipeError:
            raise self.ended() from None

    def wait(self) -> None:
        """Until it has heard that; `CommandError` where it ends before. One that takes long for it is waited for no longer."""
        limit = time.monotonic() + _HEARS_S
        poller = select.poll()
        poller.register(self._go, 0)  # the error that there is no reader is told always
        while self._unread() and time.monotonic() < limit:
            if poller.poll(_LOOK_MS) and self._unread():
                raise self.ended()

    def ended(self) -> CommandError:
        """The error of one that has ended before it began, with the last lines that it wrote."""
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
        words = ": ".join(filter(None, (f"{how} as soon as it was started", last)))
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
    """Start a program that outlives us, in a session of its own, with its output in files.

    It is one that begins when a line comes on its stdin, and ends where none does: that is sent once `record` has returned.
    With `stdin` it has that descriptor as well, under the number that its last argument, `--stdin`, gives.
    Who gives `told` finds it there, and waits for it to have begun.
    """
    process, before = _spawned(argv, cwd=cwd, env=env, stdout=stdout, stderr=stderr, stdin=stdin)
    assert process.stdin
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.stdin)
        ticks = start_ticks(process.pid)
        process.returncode = 0  # ours to find by identity, not to wait for: Popen must not warn when it is collected
        word = Told(argv[0], process, stderr, before)
        if ticks is None:
            raise word.ended()
        identity = proc.Identity(process.pid, ticks)
        record(identity)
        word.tell()
        if told is not None:
            told.append(word)
            stack.pop_all()
    return identity


def _private(path: Path) -> BinaryIO:
    """The file, to append to; a new one is its owner's alone."""
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def _spawned(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdout: Path, stderr: Path, stdin: int | None
) -> tuple[subprocess.Popen[bytes], int]:
    """The program, and how much of its stderr's file is of others before it."""
    try:
        for path in filter(os.path.exists, (stdout, stderr)):  # of an attempt before
            input_file.check(path)
        with contextlib.ExitStack() as stack, _private(stdout) as out, _private(stderr) as err:
            before = err.tell()
            own = [] if stdin is None else [os.dup(stdin)]
            for fd in own:
                stack.callback(os.close, fd)
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
