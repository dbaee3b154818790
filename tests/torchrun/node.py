"""Starts `distlaunch torchrun` as a scheduler does: a process per node, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.system import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]
LIMIT_S = 90


class Node:
    """One node's process, with what it prints in files."""

    def __init__(
        self, directory: Path, *words: str, env: Mapping[str, str] | None = None, stdin: str = "", name: str = "0"
    ) -> None:
        """`directory`: its working directory, and its directory for temporary files."""
        self.directory = directory
        self._out, self._err = directory / f"out.{name}", directory / f"err.{name}"
        own = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "OMP_"))}
        (directory / "tmp").mkdir(exist_ok=True)
        words_in = directory / f"in.{name}"
        words_in.write_text(stdin)
        with self._out.open("wb") as out, self._err.open("wb") as err, words_in.open("rb") as given:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launcher", "torchrun", *words],
                cwd=directory, stdin=given, stdout=out, stderr=err, start_new_session=True,
                env={**own, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory / "tmp"), **(env or {})},
            )  # fmt: skip

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, met: Callable[[], object]) -> None:
        """Wait until `met`."""
        limit = time.monotonic() + LIMIT_S
        while not met():
            assert time.monotonic() < limit, f"not met in {LIMIT_S} s: {self.out!r} {self.err!r}"
            time.sleep(0.02)

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        self.until(lambda: self.process.poll() is not None)
        return int(self.process.returncode)

    def below(self) -> list[tuple[int, int]]:
        """Pid and start time of all that it has started."""
        return processes.below(self.process.pid)

    def left(self) -> list[str]:
        """The names of run directories that exist."""
        return sorted(path.name for path in (self.directory / "tmp").iterdir())

    def end(self) -> None:
        """End it, however the test has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
