"""`distlaunch` on the login node of the testbed's Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.testbed import SlurmOptions, fixtures

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.command import Cli, Result
    from tests.testbed.slurm import Slurm


@dataclass(frozen=True)
class Login:
    """A shell on the cluster's login node."""

    cli: Cli
    slurm: Slurm

    def __call__(self, *args: str, env: dict[str, str | None] | None = None, **more: Any) -> Result:
        """Run distlaunch with the cluster's Slurm."""
        return self.cli(*args, env=self.env(env), timeout_s=120, **more)

    def start(self, *args: str, env: dict[str, str | None] | None = None) -> subprocess.Popen[bytes]:
        """Start distlaunch and leave it running."""
        return self.cli.start(*args, env=self.env(env))

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Slurm's variables, and some of the test's."""
        return {**{key: value for key, value in self.slurm.env().items() if key.startswith(("SLURM", "PATH"))}, **(more or {})}

    def write(self, name: str, text: str) -> Path:
        """A file on the shared file system."""
        return self.cli.write(name, text)


@pytest.fixture
def login(slurm: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """Leaves the cluster idle."""
    yield Login(distlaunch, slurm)
    slurm.cancel_all()
    slurm.wait_idle()


@pytest.fixture(scope="module")
def fragile() -> Iterator[Slurm]:
    """A Slurm of the module's own with six hosts, that soon notices what is lost."""
    with fixtures.make(6, slurm=SlurmOptions(dead_after_s=3, conf={"MessageTimeout": "5"})) as testbed:
        yield testbed.slurm


@pytest.fixture
def mishaps(fragile: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """A login node of the cluster that may be broken; afterwards it is whole and idle again."""
    yield Login(distlaunch, fragile)
    fragile.cancel_all()
    fragile.wait_idle()
