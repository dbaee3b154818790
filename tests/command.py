"""The command line as tests use it: `distlaunch(...)` runs a command as a user does, in a process of its own.

The process is forked from one that has imported everything (tests/forked.py), unless a test is about how commands
start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import envelope

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Result:
    """What one command did."""

    exit_code: int
    stdout: str
    stderr: str

    def __post_init__(self) -> None:
        envelope.check_text(self.stdout)

    @property
    def json(self) -> dict[str, Any]:
        """The envelope on stdout."""
        value: dict[str, Any] = json.loads(self.stdout)
        envelope.check(value)
        return value


@dataclass(frozen=True)
class Cli:
    """`distlaunch`, with its runs, settings and home below one temporary directory, where it also works."""

    directory: Path

    @property
    def runs(self) -> Path:
        """Where its run directories are."""
        return self.directory / "runs"

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str]:
        """Its environment; None removes a variable."""
        env: dict[str, str | None] = {
            key: value for key, value in os.environ.items() if not key.startswith("DISTLAUNCH_")
        }
        env |= {"PYTHONPATH": str(ROOT), "DISTLAUNCH_RUNS_DIR": str(self.runs), "HOME": str(self.directory)}
        env |= {
            "DISTLAUNCH_SYSTEM_CONFIG": str(self.directory / "system.toml"),
            "XDG_CONFIG_HOME": None,
            **(more or {}),
        }
        return {key: value for key, value in env.items() if value is not None}

    def start(
        self,
        *args: str | bytes,
        env: dict[str, str | None] | None = None,
        python: tuple[str, ...] = ("-m", "launcher"),
        real: bool = False,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a command, with pipes for stdout and stderr, and leave it running; `real`: in a new interpreter."""
        from tests import fork_servers, forked  # the first is a plugin, which pytest wants to import itself

        argv = [sys.executable, *python, *args]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        popen: Any = forked.started if real else fork_servers.commands().popen
        process: subprocess.Popen[bytes] = popen(argv, env=self.env(env), **{"cwd": self.directory, **pipes, **more})
        return process

    def __call__(
        self, *args: str | bytes, env: dict[str, str | None] | None = None, timeout_s: float = 240, **more: Any
    ) -> Result:
        """Run a command to its end."""
        with self.start(*args, env=env, **more) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()  # or leaving the block would wait for it forever
                raise
        return Result(
            process.returncode, (stdout or b"").decode(errors="replace"), (stderr or b"").decode(errors="replace")
        )

    def write(self, name: str, text: str) -> Path:
        """A file below its directory."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
