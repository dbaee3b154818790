"""A program on a terminal: a pty that controls its session, keys that are typed, a screen that is read."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

LIMIT_S = 120


class Screen:
    """Starts the program; leaving the block ends it, if it still runs."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        size: tuple[int, int] = (31, 71),
        **streams: Any,
    ) -> None:
        """`streams`: `stdin`, `stdout` or `stderr`, if one of them is not the terminal."""
        self.fd, terminal = os.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        self.said = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # one read may end within a character
        self._seen = 0

        def control() -> None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)  # the process that runs the tests may ignore them

        given = {"stdin": terminal, "stdout": terminal, "stderr": terminal, **streams}
        own: Any = {"start_new_session": True, "preexec_fn": control, "pass_fds": [terminal]}
        self.process = subprocess.Popen(list(argv), env=env, cwd=cwd, **own, **given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        for fd in (self.fd, self._terminal):
            os.close(fd)

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Close the window."""
        os.close(self.fd)
        self.fd = os.open(os.devnull, os.O_RDONLY)

    def type(self, keys: str) -> None:
        """Press them."""
        os.write(self.fd, keys.encode())

    def until(self, text: str) -> str:
        """Read until `text` is on the screen, after what was waited for before; return what came before it."""
        found = ""

        def met() -> bool:
            nonlocal found
            at = self.said.find(text, self._seen)
            if at >= 0:
                found = self.said[self._seen : at]
                self._seen = at + len(text)
            return at >= 0

        self.wait(met, text)
        return found

    def end(self) -> int:
        """Read to the end of the program; return its exit code."""
        self.wait(lambda: self.process.poll() is not None, "end of the program")
        self._read(0.0)
        return self.process.returncode

    def wait(self, met: Callable[[], object], what: str) -> None:
        """Read until `met`."""
        limit = time.monotonic() + LIMIT_S
        while not met():
            assert time.monotonic() < limit, f"no {what!r} within {LIMIT_S} s: {self.said!r}"
            assert self.process.poll() is None or self._read(0.0) or met(), f"no {what!r}: it has ended: {self.said!r}"
            self._read(0.05)

    def _read(self, wait_s: float) -> bool:
        got = False
        while select.select([self.fd], [], [], wait_s)[0] and (data := os.read(self.fd, 65536)):
            self.said += self._decoder.decode(data)
            got, wait_s = True, 0.0
        return got

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes now."""
        return termios.tcgetattr(self._terminal)
