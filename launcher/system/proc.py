"""Local programs that run to completion, or are found by identity; `detached.py` and `pipes.py` start the others."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from launcher.agent.system.processes import start_ticks
from launcher.errors import CommandError
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


LAST_BYTES = 1 << 16
"""How much is read of the end of a program's output."""

_LAST_LINES = 3
WITHOUT_HERE = "import sys;sys.path[:]=filter(None,sys.path);"
"""Prefix of code that we pass to a Python: ignore the working directory, where other users may have modules."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same PID."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """Whether this process still runs (a zombie does not)."""
        return start_ticks(self.pid) == self.start_ticks

    def send(self, number: int) -> None:
        """Signal the process, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)

    def send_group(self, number: int) -> None:
        """Signal the process group that this process leads, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.killpg(self.pid, number)


_children: set[subprocess.Popen[bytes]] = set()


@contextlib.contextmanager
def child(argv: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that does not outlast this block, nor this process if it ends while a thread waits for the program.

    Raises `CommandError` if it cannot be started.
    """
    try:
        process = subprocess.Popen(list(argv), **how)
    except OSError as error:
        raise CommandError(f"{argv[0]} cannot be started: {error.strerror}") from error
    _children.add(process)
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        _children.discard(process)


@atexit.register
def _end_children() -> None:
    for process in list(_children):
        process.kill()


def run(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output. Raises `CommandError` if it cannot be started or takes too long."""
    done = run_bytes(argv, timeout_s=timeout_s, env=env, stdin=stdin)
    said = (data.decode(errors="replace") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


def in_one_line(said: str) -> str:
    """Lines of a program's output, joined into one."""
    return "; ".join(filter(None, map(str.strip, said.splitlines())))


def run_bytes(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """`run` for programs whose output may not be text, such as file names."""
    feed = subprocess.PIPE if stdin else subprocess.DEVNULL
    with child(argv, env=env, stdin=feed, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(stdin or None, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{argv[0]} did not end within {timeout_s:.0f} s") from error
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


def run_bounded(argv: Sequence[str], *, timeout_s: float, limit_bytes: int) -> subprocess.CompletedProcess[str]:
    """`run` for programs that may print more than fits in memory: `CommandError` for more than `limit_bytes`."""
    import selectors

    limit = time.monotonic() + timeout_s
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child(argv, **how) as process, selectors.DefaultSelector() as selector:
        said: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
        try:
            for pipe in said:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in (ready := selector.select(max(0.0, limit - time.monotonic()))):
                    data = os.read(key.fd, LAST_BYTES)
                    said[key.fileobj] += data
                    if not data:
                        selector.unregister(key.fileobj)
                    if len(said[key.fileobj]) > limit_bytes:
                        raise CommandError(f"{argv[0]} has printed more than {limit_bytes >> 20} MB")
                if not ready:
                    raise CommandError(f"{argv[0]} did not end within {timeout_s:.0f} s")
            process.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{argv[0]} did not end within {timeout_s:.0f} s") from error
    out, err = (bytes(data).decode(errors="replace") for data in said.values())
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


def last_words(said: str) -> str:
    """The last lines of a program's output, joined into one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return "; ".join(lines[-_LAST_LINES:])
