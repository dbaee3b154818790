"""`distlaunch` with a namespace of a real Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed import Kube, NotAvailableError, kube_given
from tests.testbed.kube_image import PINNED as IMAGE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.command import Cli, Result

LABEL = "distlaunch/run"


@dataclass(frozen=True)
class User:
    """A shell of somebody with a namespace."""

    cli: Cli
    kube: Any
    """A `Kube`, or the `GivenCluster` that somebody has named."""

    namespace: str
    kubeconfig: Path
    image: str = IMAGE

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Which cluster, namespace and image."""
        own = {"KUBECONFIG": str(self.kubeconfig), "DISTLAUNCH_NAMESPACE": self.namespace, "DISTLAUNCH_IMAGE": self.image}
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
        found: list[dict[str, Any]] = self.kube.pods(self.namespace, f"{LABEL}={run}")
        return found

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
def pods(request: pytest.FixtureRequest, distlaunch: Cli) -> Iterator[User]:
    """On a cluster that runs pods: the one that `DISTLAUNCH_TEST_KUBECONFIG` names, or ours with two real machines."""
    try:
        cluster = kube_given.given()
    except NotAvailableError as error:
        pytest.skip(str(error))
    image = kube_given.image() if cluster else IMAGE
    kube = cluster or request.getfixturevalue("kube_nodes")
    with kube.lend_namespace() as namespace:
        yield User(distlaunch, kube, namespace, kube.kubeconfig, image)


@pytest.fixture
def machines(pods: User) -> Kube:
    """The machines below `pods` and their control plane, to which things may happen."""
    if not isinstance(pods.kube, Kube):
        pytest.skip("what happens to machines and control planes is tested on the testbed's own only")
    return pods.kube


@pytest.fixture
def kinds(kube_controllers: Kube, kube_controllers_namespace: str, distlaunch: Cli) -> User:
    """On a cluster with two real machines and the controllers of JobSet, Kubeflow and Kueue."""
    return User(distlaunch, kube_controllers, kube_controllers_namespace, kube_controllers.kubeconfig)
