"""Hosts that only a bastion reaches, and a laptop that knows them as the cluster `lab`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from testbed.bastion import Bastion
from testbed.fixtures import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testbed.testbed import Testbed
    from tests.command import Cli, Result

LIMIT_S = 120


@dataclass
class Lab:
    """The hosts, the bastion, and a home whose settings name the cluster."""

    rack: Any
    """A `Rack`, whose module imports this one."""

    bastion: Bastion
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="dl-")))
    """Short, as sockets have short names."""

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Its variables: the bastion's client is first on PATH."""
        own = {"HOME": str(self.home), "PATH": f"{self.bastion.client}:{os.environ['PATH']}"}
        return {**own, "XDG_RUNTIME_DIR": str(self.home), **(more or {})}

    def __call__(self, *args: str, env: dict[str, str | None] | None = None) -> Result:
        """Run distlaunch to its end."""
        done: Result = self.rack.shell(*args, env=self.env(env))
        return done

    def run(self, *args: str) -> Result:
        """Run a script on the cluster, followed."""
        return self("run", "--on", "lab", *args)

    def follow(self, *args: str) -> Any:
        """The same, left running."""
        return self.rack.open("run", "--on", "lab", *args, env=self.env())

    def settings(self, **values: str) -> None:
        """Write the settings of `lab`, with these changes."""
        known = {"login": "gate", "remote_dir": str(self.rack.remote), "python": sys.executable, **values}
        lines = "".join(f'{key} = "{value}"\n' for key, value in known.items())
        where = f'backend = "ansible"\ninventory = ["{self.rack.ssh.inventory}"]\n'
        self.rack.cli.write("system.toml", f"[clusters.lab]\n{where}{lines}")

    def status(self, run: str = "last") -> dict[str, Any]:
        """What `distlaunch status` reports."""
        found: dict[str, Any] = self("status", run, "--output", "json").json["result"]
        return found


@pytest.fixture(scope="session")
def island() -> Iterator[Testbed]:
    """Three hosts that answer nobody here: only from the controller are they reached."""
    with make(3, ssh=True) as testbed:
        for host in testbed.hosts:
            host.run(("ip", "route", "add", "blackhole", f"{testbed.address}/32"), check=True)
        yield testbed


@pytest.fixture(scope="session")
def bastion(island: Testbed) -> Iterator[Bastion]:
    """The bastion, with the limits that sshd has by default."""
    directory = Path(tempfile.mkdtemp(prefix="distlaunch-gate-"))
    directory.chmod(0o755)
    made = Bastion("gate", island.controller, directory)
    made.start()
    yield made
    made.down()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def lab(island: Testbed, bastion: Bastion, distlaunch: Cli, racks: Callable[..., Any]) -> Iterator[Lab]:
    """Leaves no run, and no connection."""
    made = Lab(racks(distlaunch, island.ssh), bastion)
    made.settings()
    try:
        yield made
        made.rack.clean()
    finally:
        bastion.take_keys()
        made("login", "lab", "--close")
        made.rack.clean(wait=False)
        shutil.rmtree(made.home, ignore_errors=True)


def wait_end(lab: Lab, run: str) -> dict[str, Any]:
    """The state of a run once it has ended."""
    wait_until("the run's end", lambda: lab.status(run)["exit_code"] is not None, limit_s=LIMIT_S, every_s=0.5)
    return lab.status(run)
