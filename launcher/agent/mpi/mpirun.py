"""The program that starts the ranks, mpirun or srun, as a process: what it says, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Dict, List, Optional

from ..cause import signal_name

_END_S = 2.0
_KEPT_BYTES = 16 * 1024
_READ_BYTES = 1 << 16


class Mpirun:
    """The process on node 0. What it writes is passed on to this process's stderr."""

    def __init__(self, argv: List[str], env: Dict[str, str], cwd: str) -> None:
        self.name = os.path.basename(argv[0])
        self.code: Optional[int] = None
        self.ended_at = 0.0
        """Unix seconds."""

        self._said = b""
        self._fd, theirs = os.pipe()
        os.set_blocking(self._fd, False)
        self._process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def look(self) -> Optional[int]:
        """Read what it has written; its exit code if it has ended."""
        if self._fd >= 0:
            self._read()
        if self.code is None and self._process.poll() is not None:
            self.code, self.ended_at = self._process.returncode, time.time()
            self._read()
        return self.code

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, _READ_BYTES):
                self._said = (self._said + data)[-_KEPT_BYTES:]
                sys.stderr.buffer.write(data)
                sys.stderr.flush()

    def age_s(self) -> float:
        """How long ago it ended."""
        return time.time() - self.ended_at

    def ended(self) -> str:
        """How it ended, in words."""
        assert self.code is not None
        how = f"was killed by {signal_name(-self.code)}" if self.code < 0 else f"ended with exit code {self.code}"
        return f"{self.name} {how}"

    def text(self) -> str:
        """The end of what it has written."""
        return self._said.decode(errors="replace")

    def said(self) -> str:
        """The same in one line, without the frames that Open MPI draws around its messages."""
        lines = [line.strip() for line in self.text().splitlines()]
        return " ".join(line for line in lines if line and not set(line) <= {"-", "="})[:400]

    def end(self) -> None:
        """End it, with all that it has started on this node."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.look() is None:
                self._process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_S)
        self.look()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
