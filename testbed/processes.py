"""The processes of a host: all in its namespaces, however they got there; found and killed by identity."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.errors import TestbedError, WaitError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

KINDS = ("net", "uts", "mnt")
"""A process that leaves one of a host's namespaces (a container) is still in another."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now; None if there is none, or a zombie."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks)

    def alive(self) -> bool:
        """Whether this process, not a later one with its pid, still runs."""
        return start_ticks(self.pid) == self.start_ticks

    def send(self, number: int) -> None:
        """Signal this process, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive():  # so the handle is its own
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def command(self) -> str:
        """Its command line, for messages."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        return "?"


def start_ticks(pid: int) -> int | None:
    """When a process started; None for no such process, or a zombie.

    Independent of the agent's, which may be wrong during development: a testbed whose owner seems dead is removed.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def namespaces(pid: int | str) -> frozenset[int]:
    """The namespaces of a process, of the kinds of which a host has its own."""
    found = set()
    for kind in KINDS:
        with contextlib.suppress(OSError):
            found.add(os.stat(f"/proc/{pid}/ns/{kind}").st_ino)
    return frozenset(found)


@contextlib.contextmanager
def pinned(anchors: Iterable[Process], networks: Iterable[Path] = ()) -> Iterator[frozenset[int]]:
    """The namespaces of these processes, and these networks, by inode numbers that cannot be reused in the context.

    A namespace vanishes with its last process unless a file holds it, and the next one created may get its number.
    """
    with contextlib.ExitStack() as stack:

        def number(path: str) -> int:
            return os.fstat(stack.enter_context(open(path, "rb")).fileno()).st_ino

        own = {number(str(path)) for path in networks}
        for anchor in anchors:
            with contextlib.suppress(OSError):
                found = {number(f"/proc/{anchor.pid}/ns/{kind}") for kind in KINDS}
                own |= found if anchor.alive() else set()
        yield frozenset(own) - namespaces("self") - namespaces(1)


def inside(own: Collection[int]) -> list[Process]:
    """All processes in one of these namespaces, as `pinned` yields them."""
    wanted = frozenset(own)
    found = (Process.of(int(entry)) for entry in os.listdir("/proc") if entry.isdigit() and wanted & namespaces(entry))
    return [process for process in found if process]


def end(own: Collection[int], *, spare: Collection[Process] = (), limit_s: float = 120) -> None:
    """SIGKILL all processes in these namespaces, including those that they start meanwhile.

    The youngest first: if a parent exits before its stopped child, the kernel resumes the child, with a SIGHUP.
    """
    deadline = time.monotonic() + limit_s
    while left := [process for process in inside(own) if process not in spare]:
        for process in sorted(left, key=lambda process: (process.start_ticks, process.pid), reverse=True):
            process.send(signal.SIGKILL)
        if time.monotonic() > deadline:
            raise WaitError(
                f"waited {limit_s:g} s for these to die: " + "; ".join(process.command() for process in left)
            )
        wait_ended(left, limit_s=limit_s)


def wait_ended(waited: Iterable[Process], *, limit_s: float) -> None:
    """Return when all of them have exited, or after the limit."""
    deadline = time.monotonic() + limit_s
    for process in waited:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            try:
                if process.alive():  # so the handle is its own
                    ended = select.poll()
                    ended.register(handle, select.POLLIN)
                    ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
            finally:
                os.close(handle)


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: str = "",
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program until it exits; at the limit, kill its process group and raise `WaitError`.

    Args:
        check: whether an exit code other than 0 is a `TestbedError` too.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(  # type: ignore[call-overload]
        list(argv), env=env, cwd=cwd, text=True, errors="replace", start_new_session=True, **pipes
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
            said = ((error.stderr or b"") + (error.stdout or b"")).decode(errors="replace")[-400:]
            raise WaitError(f"`{' '.join(argv)}` did not end within {timeout_s:g} s; it said: {said!r}") from None
    if check and process.returncode:
        raise TestbedError(f"`{' '.join(argv)}` ended with {process.returncode}: {(stderr or stdout).strip()[-400:]}")
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
