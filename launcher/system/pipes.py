"""Byte streams to and from programs that run alongside us."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from typing import IO, TYPE_CHECKING

from launcher.errors import CommandError
from launcher.system import proc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STDERR_BYTES = 1 << 20
_ENDS_S = 2.0


class Bridge:
    """A byte stream to a peer: `sock`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def wait_for(self, mark: bytes, limit_s: float) -> None:
        """Read up to and including the mark. Raises `CommandError` if it does not arrive within `limit_s` seconds."""
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
        """Close the stream. Returns why it ended, if known."""
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
        """Close the stream and end the program. Returns its last lines on stderr, or its exit code if it failed."""
        self.sock.close()
        _end(self._process, _ENDS_S)
        code, said = self._process.returncode, _end_of(self._stderr)
        return proc.last_words(said) or (f"{self._name} ended with code {code}" if code > 0 else "")


class Pipe:
    """A program whose stdout is read while it runs. Its stdin stays open and silent until the program has to end."""

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

    def send(self, data: bytes) -> None:
        """Write to its stdin, as much as a pipe holds. A program that has ended takes nothing."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def flooded(self) -> bool:
        """Whether its stderr is too long to be read."""
        return os.fstat(self._stderr.fileno()).st_size > _STDERR_BYTES

    def end(self, patience_s: float = 2.0) -> tuple[int, str]:
        """End the program if it still runs. Returns its exit code and the end of its stderr."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        _end(self._process, patience_s)
        self._process.stdout.close()
        return self._process.returncode, _end_of(self._stderr)


class LentPipe:
    """As `Pipe`, of a program that another process has started: its stdin, stdout, stderr (a file), and its pidfd."""

    def __init__(self, stdin: int, stdout: int, stderr: int, process: int) -> None:
        self.fd = stdout
        self._stdin, self._stderr, self._process = stdin, os.fdopen(stderr, "rb"), process

    def flooded(self) -> bool:
        """Whether its stderr is too long to be read."""
        return os.fstat(self._stderr.fileno()).st_size > _STDERR_BYTES

    def end(self, patience_s: float = 2.0) -> tuple[int | None, str]:
        """End the program if it still runs. Returns None, as its code is not known, and the end of its stderr."""
        os.close(self._stdin)
        for number, limit_s in ((None, 0.05), (signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
            with contextlib.suppress(ProcessLookupError):
                if number:
                    signal.pidfd_send_signal(self._process, number)
            if select.select([self._process], [], [], limit_s)[0]:
                break
        os.close(self._process)
        os.close(self.fd)
        return None, _end_of(self._stderr)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a program whose stdin was closed."""
    for action, limit_s in ((None, 0.05), (process.terminate, patience_s), (process.kill, None)):
        if action is not None:
            action()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
            break


def _end_of(stderr: IO[bytes]) -> str:
    """The end of what a program wrote to the file, which is closed."""
    with stderr as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - proc.LAST_BYTES))
        return file.read(proc.LAST_BYTES).decode(errors="replace")
