"""`distlaunch` with a namespace of a real Kubernetes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from testbed import Kube, NotAvailableError, kube_given, wait_until
from testbed.kube_image import PINNED as IMAGE
from testbed.kube_watch import wait_for
from tests.k8s import proxy as proxies
from tests.k8s.following import Follower

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from tests.command import Cli, Result
    from tests.k8s.proxy import Proxy

    Report: TypeAlias = Generator[None, pytest.TestReport, pytest.TestReport]

LABEL = "distlaunch/run"
KINDS = {
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "pods": "/api/v1/namespaces/{}/pods",
    "services": "/api/v1/namespaces/{}/services",
    "configmaps": "/api/v1/namespaces/{}/configmaps",
    "secrets": "/api/v1/namespaces/{}/secrets",
    "networkpolicies": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}
"""All kinds of objects that a run may have, except those that only some clusters know."""

MORE_KINDS = {
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "trainjobs": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
    "trainingruntimes": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainingruntimes",
    "pytorchjobs": "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
    "mpijobs": "/apis/kubeflow.org/v2beta1/namespaces/{}/mpijobs",
    "tfjobs": "/apis/kubeflow.org/v1/namespaces/{}/tfjobs",
}


@dataclass(frozen=True)
class User:
    """A user's shell, with a namespace."""

    cli: Cli
    kube: Any
    """A `Kube`, or the `GivenCluster` that the test run was given."""

    namespace: str
    kubeconfig: Path
    image: str = IMAGE
    followers: list[Follower] = field(default_factory=list)
    """What it has started and may still run."""

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Which cluster, namespace and image."""
        own = {
            "KUBECONFIG": str(self.kubeconfig),
            "DISTLAUNCH_NAMESPACE": self.namespace,
            "DISTLAUNCH_IMAGE": self.image,
        }
        return {**own, **(more or {})}

    def __call__(
        self, *args: str, env: dict[str, str | None] | None = None, timeout_s: float = 240, **more: Any
    ) -> Result:
        """Run distlaunch to its end."""
        return self.cli(*args, env=self.env(env), timeout_s=timeout_s, **more)

    def at_once(self, *commands: tuple[str, ...], env: dict[str, str | None] | None = None) -> list[Result]:
        """Run several commands at the same time, each to its end."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(lambda words: self(*words, env=env), commands))

    def follow(self, *args: str, env: dict[str, str | None] | None = None) -> Follower:
        """Start `distlaunch k8s`, and look at it while it runs."""
        self.followers.append(Follower(self.cli.start("k8s", *args, env=self.env(env))))
        return self.followers[-1]

    def close(self) -> None:
        """Leave nothing running here."""
        for follower in self.followers:
            follower.close()

    def write(self, name: str, text: str) -> Path:
        """A file in the working directory; a kubeconfig beside it, as it would be sent from there."""
        beside = f"../{self.cli.directory.name}-" if name.endswith(".kubeconfig") else ""
        return self.cli.write(beside + name, text)

    def detached(self, *args: str, env: dict[str, str | None] | None = None) -> str:
        """The id of a run that was submitted."""
        done = self("k8s", "--detach", *args, env=env)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def state(self, run: str) -> dict[str, Any]:
        """What `distlaunch status` reports."""
        value: dict[str, Any] = self("status", run, "--output", "json").json["result"]
        return value

    def pods(self, run: str) -> list[dict[str, Any]]:
        """The run's pods."""
        found: list[dict[str, Any]] = self.kube.pods(self.namespace, f"{LABEL}={run}")
        return found

    def wait_pods(self, run: str, count: int) -> list[dict[str, Any]]:
        """Wait until a run has this many pods."""
        found: list[dict[str, Any]] = self.kube.wait_pods(
            self.namespace,
            f"{count} pods",
            lambda pods: pods if len(pods) == count else None,
            selector=f"{LABEL}={run}",
        )
        return found

    def wait_printed(self, run: str, text: str, count: int) -> None:
        """Wait until this many pods of a run have printed this, without a command of ours."""
        for pod in self.wait_pods(run, count):
            name = pod["metadata"]["name"]
            self.kube.wait_log(self.namespace, name, repr(text), lambda lines: any(text in line for line in lines))

    def left(self, run: str = "", **more: str) -> list[str]:
        """The objects of this run, or of any run, in the namespace."""
        found = []
        for kind, path in {**KINDS, **more}.items():
            listed = self.kube.api.get(path.format(self.namespace), labelSelector=f"{LABEL}={run}" if run else LABEL)
            found += [f"{kind} {item['metadata']['name']}" for item in listed["items"]]
        return found

    def wait_nothing_left(self, run: str = "", **more: str) -> None:
        """Wait until no object of this run, or of any run, is in the namespace."""
        for path in {**KINDS, **more}.values():
            self.kube.wait_none(path.format(self.namespace), f"{LABEL}={run}" if run else LABEL)
        # A controller may make a pod until its Job is gone, and with that the pod goes, too.
        wait_until("nothing to be left", lambda: not self.left(run, **more))

    def with_rights(self, name: str, rules: list[dict[str, Any]]) -> User:
        """The same shell, as an account of the namespace with these rights."""
        return replace(self, kubeconfig=self.kube.account(self.namespace, name, rules))


def index_of(pod: dict[str, Any]) -> int:
    """The number of a pod's node."""
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def job_ends(user: User, run: str) -> set[str]:
    """Wait until the Job has ended; its conditions."""

    def ended(found: list[dict[str, Any]]) -> set[str]:
        kinds = {told["type"] for told in found[0].get("status", {}).get("conditions", ()) if told["status"] == "True"}
        return kinds & {"Complete", "Failed"}

    path = KINDS["jobs"].format(user.namespace)
    return wait_for(user.kube.api, path, "the Job to end", ended, fieldSelector=f"metadata.name={run}")


def stopped_often(user: User, run: str) -> None:
    """Have the Job's controller believe that each of its pods replaces five that were stopped."""
    counted = {"batch.kubernetes.io/job-index-ignored-failure-count": "5"}
    for pod in user.pods(run):
        path = f"{KINDS['pods'].format(user.namespace)}/{pod['metadata']['name']}"
        user.kube.api.patch(path, {"metadata": {"annotations": counted}})


def may_make_accounts(user: User) -> bool:
    """Whether this user of the cluster may give rights to others."""
    return isinstance(user.kube, Kube)


@contextmanager
def shell(cli: Cli, kube: Any, namespace: str, image: str = IMAGE) -> Iterator[User]:
    """A shell of the administrator, in which nothing runs afterwards."""
    with closing(User(cli, kube, namespace, kube.kubeconfig, image)) as user:
        yield user


@pytest.fixture
def user(kube: Kube, kube_namespace: str, distlaunch: Cli) -> Iterator[User]:
    """On a control plane without nodes: pods wait."""
    distlaunch.write("x.py", "print(1)\n")
    with shell(distlaunch, kube, kube_namespace) as found:
        yield found


@pytest.fixture
def proxy(user: User) -> Iterator[Proxy]:
    """In front of the control plane of `user`."""
    with proxies.before(user.kubeconfig) as server:
        yield server


@pytest.fixture
def pods(request: pytest.FixtureRequest, distlaunch: Cli) -> Iterator[User]:
    """On a cluster that runs pods: the one that `DISTLAUNCH_TEST_KUBECONFIG` names, or ours with three real nodes."""
    try:
        cluster = kube_given.given()
    except NotAvailableError as error:
        pytest.skip(str(error))
    image = kube_given.image() if cluster else IMAGE
    kube = cluster or request.getfixturevalue("kube_nodes")
    with kube.lend_namespace() as namespace, shell(distlaunch, kube, namespace, image) as found:
        yield found


@pytest.fixture
def own_kube(pods: User) -> Kube:
    """The testbed's own cluster below `pods`, whose hosts and control plane a test may break."""
    if not isinstance(pods.kube, Kube):
        pytest.skip("failing hosts and control planes are tested only on the testbed's own cluster")
    return pods.kube


@pytest.fixture
def kinds(kube_controllers: Kube, kube_nodes_namespace: str, distlaunch: Cli) -> Iterator[User]:
    """On a cluster with three real nodes and the controllers of JobSet, Kubeflow and Kueue."""
    with shell(distlaunch, kube_controllers, kube_nodes_namespace) as found:
        yield found


@pytest.hookimpl(wrapper=True, trylast=True)  # so that plugins that keep reports have it, too
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Report:
    """Add what the cluster knows to the report of a failure."""
    report = yield
    values = [getattr(value, "user", value) for value in getattr(item, "funcargs", {}).values()]
    users = [value for value in values if isinstance(value, User)]
    if report.failed and call.when == "call" and users:
        (user, *_) = users
        report.sections.append((f"namespace {user.namespace}", user.kube.told(user.namespace)))
        if isinstance(user.kube, Kube):
            report.sections.append(("logs of the cluster", user.kube.last_words()))
    return report
