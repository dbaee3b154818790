"""A host that knows two Slurm clusters, each with its own controller and login node."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from testbed import SlurmOptions, fixtures, packages
from tests.slurm.laptop import Laptop, login_node

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from testbed.login import LoginNode
    from tests.command import Cli


@dataclass
class Racing(Laptop):
    """A host that knows two clusters, `juno` and `lab`, by their settings."""

    lab: LoginNode | None = None

    def __post_init__(self) -> None:
        assert self.lab is not None
        client = self.home / "client"
        client.mkdir()
        for program in self.node.client.iterdir():
            (client / program.name).symlink_to(program)
        (client / "ssh").unlink()
        (client / "config").write_text(f"Include {self.node.config}\nMatch all\nInclude {self.lab.config}\n")
        (client / "ssh").write_text(f'#!/bin/sh\nexec {packages.program("ssh")} -F {client / "config"} "$@"\n')
        (client / "ssh").chmod(0o755)

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Its variables: a client that knows both login nodes is first on PATH."""
        found = super().env(more)
        return {**found, "PATH": f"{self.home / 'client'}:{found['PATH']}"}

    def clusters(self, **more: dict[str, Any]) -> None:
        """Write the settings, with more for each cluster."""
        text = ""
        for name in ("juno", "lab"):
            values = {
                "backend": "slurm", "login": name, "remote_dir": str(self.home / name), "python": sys.executable,
                "gres": "none", "nodes": "1", **more.get(name, {}),
            }  # fmt: skip
            text += f"[clusters.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        self.cli.write("system.toml", text)

    @property
    def nodes(self) -> tuple[LoginNode, LoginNode]:
        assert self.lab is not None
        return self.node, self.lab

    def race(self, *args: str, on: str = "juno,lab") -> subprocess.Popen[bytes]:
        """A launcher that runs on whichever is first."""
        return self.cli.start("run", "--on", on, "--start", "first", *args, env=self.env())

    def queued(self) -> list[str]:
        """The jobs of both clusters that wait or run."""
        told = (node.slurm.run(("squeue", "--noheader", "--format=%j %T")).stdout for node in self.nodes)
        return [line for text in told for line in text.splitlines()]

    def submitted(self) -> int:
        """How many tries of all runs have a job, as far as is recorded."""
        records = [json.loads(path.read_text()) for path in self.cli.runs.glob("*/tries/*/run.json")]
        return sum(bool(record["handle"] and not record["handle"].get("submitting")) for record in records)

    def hold(self) -> None:
        """Submit every job from now on so that it waits until `let_go`."""
        for node in self.nodes:
            node.new_sbatch('exec "$sbatch" --hold "$@"')

    def let_go(self) -> None:
        """Let waiting jobs start."""
        for node in self.nodes:
            for number in node.slurm.run(("squeue", "--noheader", "--format=%i")).stdout.split():
                node.slurm.run(("scontrol", "release", number))


@pytest.fixture(scope="module")
def lab() -> Iterator[LoginNode]:
    """The login node of a second cluster, which shares nothing with the first."""
    with (
        fixtures.make(3, slurm=SlurmOptions(cpus_per_host=8)) as testbed,
        login_node("lab", testbed.slurm) as node,
    ):
        yield node


@pytest.fixture
def racing(juno: LoginNode, lab: LoginNode, distlaunch: Cli) -> Iterator[Racing]:
    """Leaves both clusters idle."""
    made = Racing(distlaunch, juno, lab=lab)
    made.clusters()
    try:
        yield made
    finally:
        for node in made.nodes:
            made("login", node.name, "--close")
            node.new_sbatch('exec "$sbatch" "$@"')
            node.slurm.cancel_all()
            node.slurm.wait_idle()
        shutil.rmtree(made.home, ignore_errors=True)
