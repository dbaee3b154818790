"""`distlaunch` with a namespace of a real Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed.kube_image import PINNED as IMAGE

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.conftest import Cli, Result
    from tests.testbed import Kube

LABEL = "distlaunch/run"


@dataclass(frozen=True)
class User:
    """A shell of somebody with a namespace."""

    cli: Cli
    kube: Kube
    namespace: str
    kubeconfig: Path

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Which cluster, namespace and image."""
        own = {"KUBECONFIG": str(self.kubeconfig), "DISTLAUNCH_NAMESPACE": self.namespace, "DISTLAUNCH_IMAGE": IMAGE}
        return {**own, **(more or {})}

    def __call__(self, *args: str, env: dict[str, str | None] | None = None, timeout_s: float = 120, **more: Any) -> Result:
        """Run distlaunch to its end."""
        return self.cli(*args, env=self.env(env), timeout_s=timeout_s, **more)

    def start(self, *args: str, env: dict[str, str | None] | None = None) -> subprocess.Popen[bytes]:
        """Start distlaunch and leave it running."""
        return self.cli.start(*args, env=self.env(env))

    def write(self, name: str, text: str) -> Path:
        """A file in the working folder."""
        return self.cli.write(name, text)

    def detached(self, *args: str, env: dict[str, str | None] | None = None) -> str:
        """The id of a run that was submitted."""
        done = self("k8s", "--detach", *args, env=env)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def state(self, run: str) -> dict[str, Any]:
        """What status says."""
        value: dict[str, Any] = self("status", run, "--output", "json").json["result"]
        return value

    def pods(self, run: str) -> list[dict[str, Any]]:
        """The run's pods."""
        return self.kube.pods(self.namespace, f"{LABEL}={run}")

    def left(self) -> list[str]:
        """What of any run is in the namespace."""
        paths = [f"/api/v1/{{}}/{name}" for name in ("pods", "services", "configmaps", "secrets")] + ["/apis/batch/v1/{}/jobs"]
        found = []
        for path in paths:
            listed = self.kube.api.get(path.format(f"namespaces/{self.namespace}"), labelSelector=LABEL)
            found += [f"{path.rpartition('/')[2]} {item['metadata']['name']}" for item in listed["items"]]
        return found


@pytest.fixture
def user(kube: Kube, kube_namespace: str, distlaunch: Cli) -> User:
    """On a control plane without machines: pods wait."""
    distlaunch.write("x.py", "print(1)\n")
    return User(distlaunch, kube, kube_namespace, kube.kubeconfig)


@pytest.fixture
def pods(kube_nodes: Kube, kube_nodes_namespace: str, distlaunch: Cli) -> User:
    """On a cluster with two real machines."""
    return User(distlaunch, kube_nodes, kube_nodes_namespace, kube_nodes.kubeconfig)


@pytest.fixture
def kinds(kube_controllers: Kube, kube_controllers_namespace: str, distlaunch: Cli) -> User:
    """On a cluster with two real machines and the controllers of JobSet, Kubeflow and Kueue."""
    return User(distlaunch, kube_controllers, kube_controllers_namespace, kube_controllers.kubeconfig)
