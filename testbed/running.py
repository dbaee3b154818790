"""A running program and its output: tests wait for its output, not for time."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess

from testbed.errors import WaitError

SILENT_S = 120.0
"""Seconds without output after which a wait fails."""


class Running:
    """A running command, and its output so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._said = {"stdout": b"", "stderr": b""}
        self._pipes = selectors.DefaultSelector()
        for name in self._said:
            self._pipes.register(getattr(process, name), selectors.EVENT_READ, name)

    @property
    def stdout(self) -> str:
        """All output on stdout so far."""
        return self._said["stdout"].decode(errors="replace")

    @property
    def stderr(self) -> str:
        """All output on stderr so far."""
        return self._said["stderr"].decode(errors="replace")

    def until(self, words: str, *, count: int = 1) -> None:
        """Read until stdout contains `words` this many times; the limit is on its silence."""
        while self.stdout.count(words) < count:
            if not self._read(f"{count} times {words!r}"):
                raise WaitError(f"it ended with {self.process.wait()} before it said {count} times {words!r}: {self}")

    def end(self) -> int:
        """Read until it exits; return its exit code."""
        while self._read("its end"):
            pass
        try:
            return self.process.wait(SILENT_S)
        except subprocess.TimeoutExpired:
            raise WaitError(f"its pipes are closed, and it does not end: {self}") from None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it, by default with SIGKILL."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kill it and close its pipes."""
        self._pipes.close()
        self.process.kill()
        self.process.wait()
        for name in self._said:
            getattr(self.process, name).close()

    def _read(self, what: str) -> bool:
        """Read the next output; False if there will be none."""
        if not self._pipes.get_map():
            return False
        ready = self._pipes.select(SILENT_S)
        if not ready:
            raise WaitError(f"waited {SILENT_S:g} s for {what}, and nothing came any more: {self}")
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            self._said[key.data] += data
            if not data:
                self._pipes.unregister(key.fileobj)
        return True

    def __str__(self) -> str:
        words = [str(word) for word in self.process.args] if isinstance(self.process.args, (list, tuple)) else []
        return f"`{' '.join(words)[-400:]}`\nstdout: {self.stdout[-2000:]}\nstderr: {self.stderr[-2000:]}"
