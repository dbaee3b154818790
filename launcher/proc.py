"""The one place that starts local programs, and finds them again by identity."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.agent.processes import start_ticks
from launcher.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


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


def run(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it prints; `CommandError` when it cannot be started or takes too long."""
    done = run_bytes(argv, timeout_s=timeout_s, env=env)
    said = (data.decode(errors="replace") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


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


def start_detached(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdout: Path, stderr: Path, record: Callable[[Identity], None]
) -> Identity:
    """Start a program that outlives us, in a session of its own, with its output in files.

    It is one that begins when a line comes on its stdin, and ends where none does: that is sent once `record` has returned.
    """
    try:
        with open(stdout, "ab") as out, open(stderr, "ab") as err:
            process = subprocess.Popen(
                list(argv), cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
            )
    except OSError as error:
        raise CommandError(f"{argv[0]} cannot be started: {error.strerror}", hint=f"working folder: {cwd}") from error
    assert process.stdin
    with process.stdin as go, contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
        ticks = start_ticks(process.pid)
        process.returncode = 0  # ours to find by identity, not to wait for: Popen must not warn when it is collected
        if ticks is None:
            raise CommandError(f"{argv[0]} ended as soon as it was started", hint=f"see {stderr}")
        identity = Identity(process.pid, ticks)
        record(identity)
        go.write(b"\n")
        go.flush()
    return identity


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

    def end(self, patience_s: float = 2.0) -> tuple[int, str]:
        """End it, if it has not ended; its exit code and what it said on stderr."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        for action, limit_s in ((None, 0.05), (self._process.terminate, patience_s), (self._process.kill, None)):
            if action is not None:
                action()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(limit_s)
                break
        self._process.stdout.close()
        with self._stderr as file:
            file.seek(0)
            return self._process.returncode, file.read().decode(errors="replace")
