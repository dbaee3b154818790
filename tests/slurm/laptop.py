"""`distlaunch` on a host that has none of Slurm's commands, and a login node of the testbed's Slurm."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import NotAvailableError, wait_until
from testbed.login import LoginNode

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from testbed.slurm import Slurm
    from tests.command import Cli, Result

LIMIT_S = 120


@dataclass
class Following:
    """A run in a terminal that follows it."""

    process: subprocess.Popen[bytes]
    screen: Path

    def wait_line(self, text: str) -> None:
        """Until its worker has printed that."""
        wait_until(repr(text), lambda: text in self.lines or self.process.poll() is not None, limit_s=LIMIT_S)
        assert text in self.lines

    @property
    def lines(self) -> list[str]:
        """What is shown of its workers."""
        return self.screen.read_text().splitlines()

    def connections(self) -> list[str]:
        """The processes by which it is connected to its login node."""
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()

    def end(self) -> tuple[int, str]:
        """Its exit code and its messages, once it has ended."""
        _, stderr = self.process.communicate(timeout=2 * LIMIT_S)
        return self.process.returncode, stderr.decode()


@dataclass
class Laptop:
    """A host that knows the cluster `juno` by its settings."""

    cli: Cli
    node: LoginNode
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="dl-")))
    """Short, as sockets have short names."""

    @property
    def top(self) -> Path:
        """`remote_dir`."""
        return self.home / "scratch"

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Its variables: the login node's client is first on PATH."""
        return {"HOME": str(self.home), "PATH": f"{self.node.client}:{os.environ['PATH']}", **(more or {})}

    def __call__(self, *args: str, env: dict[str, str | None] | None = None, **more: Any) -> Result:
        """Run distlaunch to its end."""
        return self.cli(*args, env=self.env(env), timeout_s=2 * LIMIT_S, **more)

    def follow(self, *args: str) -> Following:
        """A run that is followed."""
        screen = self.cli.directory / "screen"
        with screen.open("wb") as stdout:
            return Following(self.cli.start("run", "--on", "juno", *args, env=self.env(), stdout=stdout), screen)

    def detached(self, *args: str) -> str:
        """The id of a run that is not followed."""
        done = self("run", "--on", "juno", "--detach", *args)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def status(self, run: str = "last") -> dict[str, Any]:
        """What `distlaunch status` reports."""
        found: dict[str, Any] = self("status", run, "--output", "json").json["result"]
        return found

    def wait_end(self, run: str = "last") -> dict[str, Any]:
        """The state of a run once it has ended."""
        wait_until("the run's end", lambda: self.status(run)["exit_code"] is not None, limit_s=LIMIT_S, every_s=0.5)
        return self.status(run)

    def signal(self, number: int, word: str = "") -> None:
        """Send a signal to all that runs here, or to what has this word in its command."""
        here = f"HOME={self.home}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if here in path.read_bytes().split(b"\0") and word.encode() in (path.parent / "cmdline").read_bytes():
                    os.kill(int(path.parent.name), number)

    def settings(self, **values: str) -> None:
        """Write the settings: those of `juno`, with these changes."""
        known = {"backend": "slurm", "login": self.node.name, "remote_dir": str(self.top), "python": _PYTHON, **values}
        lines = "".join(f'{key} = "{value}"\n' for key, value in known.items())
        self.cli.write("system.toml", f"[clusters.juno]\n{lines}")


_PYTHON = sys.executable


@contextmanager
def login_node(name: str, slurm: Slurm) -> Iterator[LoginNode]:
    """A login node whose shell has few programs and no Python."""
    directory = Path(tempfile.mkdtemp(prefix=f"distlaunch-{name}-"))
    directory.chmod(0o755)
    try:
        node = LoginNode.of(name, slurm, directory)
    except NotAvailableError as error:
        pytest.skip(str(error))
    try:
        yield node
    finally:
        node.down()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def juno(slurm: Slurm) -> Iterator[LoginNode]:
    """That of the session's Slurm."""
    with login_node("juno", slurm) as node:
        yield node


@pytest.fixture
def laptop(juno: LoginNode, distlaunch: Cli) -> Iterator[Laptop]:
    """Leaves the cluster idle, and no connection."""
    made = Laptop(distlaunch, juno)
    made.settings()
    try:
        yield made
    finally:
        made("login", "juno", "--close")
        juno.take_keys()
        juno.slurm.cancel_all()
        juno.slurm.wait_idle()
        shutil.rmtree(made.home, ignore_errors=True)
