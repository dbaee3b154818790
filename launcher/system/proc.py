"""The one place that starts local programs, and finds them again by identity."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from launcher.agent.system.processes import start_ticks
from launcher.errors import CommandError
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


_STDERR_BYTES = 1 << 20
_LAST_BYTES = 1 << 16
_LAST_LINES = 3
_LOOK_MS = 5
_ENDS_S = 2.0
_HEARS_S = 10.0
"""An interpreter that is a script, and loads modules, may take longer; then whoever follows the run hears of its end."""

WITHOUT_HERE = "import sys;sys.path[:]=filter(None,sys.path);"
"""How each text begins that we have a Python run: without the working folder, where other users may have files of any name."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return start_ticks(self.pid) == self.start_ticks

    def send(self, number: int) -> None:
        """Signal it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)

    def send_group(self, number: int) -> None:
        """Signal it and all that it has started, of one that leads a session of its own."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.killpg(self.pid, number)


def run(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it prints; `CommandError` when it cannot be started or takes too long."""
    done = run_bytes(argv, timeout_s=timeout_s, env=env)
    said = (data.decode(errors="replace") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


def in_one_line(said: str) -> str:
    """What a program has said in several lines."""
    return "; ".join(filter(None, map(str.strip, said.splitlines())))


def run_bytes(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """`run` for programs whose output is more than text: file names, for one."""
    try:
        return subprocess.run(list(argv), capture_output=True, timeout=timeout_s, env=env, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{argv[0]} did not end within {timeout_s:.0f} s") from error
    except OSError as error:
        raise CommandError(f"{argv[0]} cannot be started: {error.strerror}") from error


def run_bounded(argv: Sequence[str], *, timeout_s: float, limit_bytes: int) -> subprocess.CompletedProcess[str]:
    """`run` for programs that may say more than there is memory for: `CommandError` for more than so many bytes."""
    import selectors

    limit = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise CommandError(f"{argv[0]} cannot be started: {error.strerror}") from error
    said: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with process, selectors.DefaultSelector() as selector:
        try:
            for pipe in said:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in (ready := selector.select(max(0.0, limit - time.monotonic()))):
                    data = os.read(key.fd, _LAST_BYTES)
                    said[key.fileobj] += data
                    if not data:
                        selector.unregister(key.fileobj)
                    if len(said[key.fileobj]) > limit_bytes:
                        raise CommandError(f"{argv[0]} has said more than {limit_bytes >> 20} MB")
                if not ready:
                    raise CommandError(f"{argv[0]} did not end within {timeout_s:.0f} s")
            process.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{argv[0]} did not end within {timeout_s:.0f} s") from error
        finally:
            process.kill()
    out, err = (bytes(data).decode(errors="replace") for data in said.values())
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


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
            file.seek(max(self._before, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            said = file.read()
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        words = ": ".join([f"{how} as soon as it was started", *filter(None, ["; ".join(lines[-_LAST_LINES:])])])
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
    record: Callable[[Identity], None],
    told: list[Told] | None = None,
    stdin: int | None = None,
) -> Identity:
    """Start a program that outlives us, in a session of its own, with its output in files.

    It is one that begins when a line comes on its stdin, and ends where none does: that is sent once `record` has returned.
    With `stdin` it has that descriptor as well, under the number that its last argument, `--stdin`, gives.
    Who gives `told` finds it there, and waits for it to have begun.
    """
    try:
        for path in filter(os.path.exists, (stdout, stderr)):  # of an attempt before
            input_file.check(path)
        with contextlib.ExitStack() as stack, open(stdout, "ab") as out, open(stderr, "ab") as err:
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
        raise CommandError(f"{argv[0]} cannot be started: {why}", hint=f"working folder: {cwd}") from error
    assert process.stdin
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.stdin)
        ticks = start_ticks(process.pid)
        process.returncode = 0  # ours to find by identity, not to wait for: Popen must not warn when it is collected
        word = Told(argv[0], process, stderr, before)
        if ticks is None:
            raise word.ended()
        identity = Identity(process.pid, ticks)
        record(identity)
        word.tell()
        if told is not None:
            told.append(word)
            stack.pop_all()
    return identity


class Bridge:
    """A byte stream to somewhere else: `sock`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def wait_for(self, mark: bytes, limit_s: float) -> None:
        """Until it has come, whatever comes before it; `CommandError` says why it has not within so many seconds."""
        limit, said = time.monotonic() + limit_s, b""
        while not said.endswith(mark):
            self.sock.settimeout(max(0.001, limit - time.monotonic()))
            try:
                more = self.sock.recv(1)
            except TimeoutError:
                raise CommandError(f"no answer within {limit_s:.0f} s; {self.end()}") from None
            if not more:
                raise CommandError(self.end() or "it ended at once")
            said = said[-len(mark) :] + more
        self.sock.settimeout(None)

    def end(self) -> str:
        """Close it; why it ended, where somebody has said so."""
        self.sock.close()
        return ""


class ProgramBridge(Bridge):
    """A program whose stdin and stdout are the stream."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self._name, self._stderr = argv[0], tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        with theirs:
            try:
                self._process = subprocess.Popen(
                    list(argv),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._stderr,
                    start_new_session=True,
                    env=env,
                )
            except OSError as error:
                self._stderr.close()
                ours.close()
                raise CommandError(f"{argv[0]} cannot be started: {error.strerror}") from error

    def end(self) -> str:
        """Also the program, where it has not ended with the stream; what it has said last on stderr, or its exit code."""
        self.sock.close()
        _end(self._process, _ENDS_S)
        code, said = self._process.returncode, _end_of(self._stderr)
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return "; ".join(lines[-_LAST_LINES:]) or (f"{self._name} ended with code {code}" if code > 0 else "")


class Pipe:
    """A program whose stdout is read while it goes on; its stdin stays open and silent until it is to end."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            self._process = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True
            )
        except OSError as error:
            self._stderr.close()
            raise CommandError(f"{argv[0]} cannot be started: {error.strerror}") from error
        assert self._process.stdout
        self.fd = self._process.stdout.fileno()

    def flooded(self) -> bool:
        """Whether its stderr has more than anybody would read."""
        return os.fstat(self._stderr.fileno()).st_size > _STDERR_BYTES

    def end(self, patience_s: float = 2.0) -> tuple[int, str]:
        """End it, if it has not ended; its exit code and what it said on stderr."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        _end(self._process, patience_s)
        self._process.stdout.close()
        return self._process.returncode, _end_of(self._stderr)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a program whose stdin was closed."""
    for action, limit_s in ((None, 0.05), (process.terminate, patience_s), (process.kill, None)):
        if action is not None:
            action()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
            break


def _end_of(stderr: IO[bytes]) -> str:
    """The last that a program has said there; closes the file."""
    with stderr as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
        return file.read(_LAST_BYTES).decode(errors="replace")
