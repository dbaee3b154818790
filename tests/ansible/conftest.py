"""`distlaunch ansible` from this machine to hosts with a real sshd."""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.testbed import fixtures, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.command import Cli, Result
    from tests.testbed import Host, SshHosts


def is_sshd(command: str) -> bool:
    """Whether that is the server, or one of its connections."""
    return re.match(r"sshd: |\S*/sshd(-session)? ", command) is not None


@dataclass
class Rack:
    """Hosts that share nothing but what this machine has, and a shell here."""

    cli: Cli
    ssh: SshHosts
    remote: Path
    _private: list[Host] = field(default_factory=list)

    def argv(self, *args: str, inventory: Path | str | None = None) -> tuple[str, ...]:
        """The command line; `args` after it win."""
        where = (
            "--inventory",
            str(inventory or self.ssh.inventory),
            "--python",
            sys.executable,
            "--remote-dir",
            str(self.remote),
        )
        return ("ansible", *where, *args)

    def __call__(self, *args: str, inventory: Path | str | None = None, timeout_s: float = 180, **more: Any) -> Result:
        """Run `distlaunch ansible` to its end."""
        return self.cli(*self.argv(*args, inventory=inventory), timeout_s=timeout_s, **more)

    def start(self, *args: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start it and leave it running."""
        return self.cli.start(*self.argv(*args), **more)

    def detached(self, *args: str) -> str:
        """A run that goes on by itself; its id."""
        done = self("--detach", *args)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def state(self, run: str) -> dict[str, Any]:
        """What `distlaunch status` says."""
        found: dict[str, Any] = self.cli("status", run, "--output", "json").json["result"]
        return found

    def wait_for(self, run: str, *states: str, limit_s: float = 90) -> dict[str, Any]:
        """Wait for one of these states."""

        def reached() -> dict[str, Any]:
            found = self.state(run)
            return found if found["state"] in states else {}

        return wait_until(f"{run} to be {' or '.join(states)}", reached, limit_s=limit_s, every_s=0.5)

    def wait_line(self, run: str, text: str, *, count: int = 1) -> None:
        """Wait until workers have written so many lines with this text."""
        wait_until(f"{text!r} in the logs", lambda: self.cli("logs", run).stdout.count(text) >= count, limit_s=90, every_s=0.3)

    def private_disks(self, *hosts: Host, size_bytes: int | None = None) -> None:
        """Give hosts a disk of their own where the runs are."""
        for host in hosts:
            host.private_folder(self.remote, size_bytes=size_bytes)
            self._private.append(host)

    def left(self) -> list[str]:
        """What of any run still runs on the hosts."""
        return [process.command() for host in self.ssh.hosts for process in host.processes() if not is_sshd(process.command())]

    def write(self, name: str, text: str) -> Path:
        """A file in the working folder."""
        return self.cli.write(f"work/{name}", text)

    def inventory(self, text: str) -> Path:
        """An inventory of its own, with how the testbed's hosts are reached."""
        common = f"[all:vars]\nansible_user=root\nansible_ssh_common_args=-F {self.ssh.config}\n"
        return self.cli.write("inventory.ini", f"{text}\n{common}")

    def clean(self) -> None:
        """Nothing is left, and disks are shared again."""
        try:
            wait_until("nothing to be left of a run", lambda: not self.left(), limit_s=60)
        finally:
            for host in self.ssh.hosts:
                for process in host.processes():
                    if not is_sshd(process.command()):
                        process.send(signal.SIGKILL)
            for host in self._private:
                host.shared_folder(self.remote)


def make(cli: Cli, ssh: SshHosts) -> Rack:
    """A rack whose runs start in a folder that holds the script alone."""
    (cli.folder / "work").mkdir()
    (cli.folder / "remote").mkdir()
    rack = Rack(cli, ssh, cli.folder / "remote")
    start = cli.start
    object.__setattr__(cli, "start", lambda *args, **more: start(*args, **{"cwd": cli.folder / "work", **more}))
    return rack


@pytest.fixture
def rack(ssh_hosts: SshHosts, distlaunch: Cli) -> Iterator[Rack]:
    """Four hosts; whatever runs there at the end is a failure."""
    made = make(distlaunch, ssh_hosts)
    yield made
    made.clean()


@pytest.fixture
def rack_of_two(distlaunch: Cli) -> Iterator[Rack]:
    """Two hosts of its own, to break."""
    with fixtures.make(2, ssh=True) as testbed:
        yield make(distlaunch, testbed.ssh)
