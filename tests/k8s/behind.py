"""A Kubernetes whose API server has a name that only a bastion knows, and a laptop that knows it as `far`."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from testbed.bastion import Bastion
from tests.k8s.following import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Kube
    from tests.command import Result

SERVER = "api.inside"


@dataclass
class Far:
    """A user of the cluster, the bastion, and a home whose settings name the cluster."""

    user: Any
    """A `User`, whose module imports this one."""

    bastion: Bastion
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="dl-")))
    """Short, as sockets have short names."""

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Its variables: the bastion's client is first on PATH."""
        own = {"HOME": str(self.home), "PATH": f"{self.bastion.client}:{os.environ['PATH']}", "KUBECONFIG": None}
        return {**own, **(more or {})}

    def __call__(self, *args: str, env: dict[str, str | None] | None = None) -> Result:
        """Run distlaunch to its end."""
        done: Result = self.user(*args, env=self.env(env))
        return done

    def follow(self, *args: str) -> Follower:
        """Start a command, and look at it while it runs."""
        started = Follower(self.user.cli.start(*args, env=self.user.env(self.env())))
        self.user.followers.append(started)
        return started

    def run(self, *args: str) -> Result:
        """Run a script on the cluster, followed."""
        return self("run", "--on", "far", *args)

    def kubeconfig(self, **changes: str | None) -> Path:
        """The user's, with the name that the bastion knows and these changes of the cluster."""
        found = yaml.safe_load(self.user.kubeconfig.read_text())
        cluster = found["clusters"][0]["cluster"]
        address = cluster["server"].removeprefix("https://").partition(":")[0]
        known = {"server": f"https://{SERVER}:6443", "tls-server-name": address, **changes}
        found["clusters"][0]["cluster"] = {k: v for k, v in {**cluster, **known}.items() if v is not None}
        name = f"{len(list(self.home.iterdir()))}-{len(changes)}.kubeconfig"
        return Path(self.user.write(name, yaml.dump(found)))

    def settings(self, kubeconfig: Path) -> None:
        """Write the settings of `far`."""
        text = f'backend = "k8s"\nlogin = "gate"\nkubeconfig = "{kubeconfig}"\n'
        self.user.cli.write("system.toml", f"[clusters.far]\n{text}")

    def state(self, run: str) -> dict[str, Any]:
        """What `distlaunch status` reports."""
        found: dict[str, Any] = self("status", run, "--output", "json").json["result"]
        return found

    @property
    def sockets(self) -> list[str]:
        """What listens here for processes that use the API, and what stands beside it."""
        return sorted(path.name for path in (self.home / ".distlaunch/login").glob("*.*.*"))


@pytest.fixture(scope="session")
def gate(kube_nodes: Kube) -> Iterator[Bastion]:
    """On a node, with the limits that sshd has by default."""
    directory = Path(tempfile.mkdtemp(prefix="distlaunch-gate-"))
    directory.chmod(0o755)
    host = kube_nodes.nodes[0].host
    names = host.path(Path("/etc/hosts"))
    with names.open("a") as file:
        file.write(f"{kube_nodes.controller.address}\t{SERVER}\n")
    made = Bastion("gate", host, directory)
    made.start()
    yield made
    made.down()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def far(own_kube: Kube, pods: Any, gate: Bastion) -> Iterator[Far]:
    """Leaves no connection."""
    assert own_kube
    made = Far(pods, gate)
    made.settings(made.kubeconfig())
    try:
        yield made
    finally:
        gate.take_keys()
        made("login", "far", "--close")
        shutil.rmtree(made.home, ignore_errors=True)
