"""Fixtures: one testbed of each kind per session, brought up on first use, and always taken down."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from testbed import kube_builds, kube_given, kube_programs, packages
from testbed.errors import NotAvailableError
from testbed.kube_conf import KubeOptions
from testbed.slurm_conf import SlurmOptions
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from testbed.kube import Kube
    from testbed.slurm import Slurm
    from testbed.ssh import SshHosts

HOSTS = 4
LOST_AFTER_S = 10


@contextmanager
def make(
    hosts: int = HOSTS, *, slurm: SlurmOptions | None = None, ssh: bool = False, kubernetes: KubeOptions | None = None
) -> Iterator[Testbed]:
    """Bring up a testbed for tests; if it is not available, they skip with the reason."""
    try:
        testbed = Testbed().up(hosts, slurm=slurm, ssh=ssh, kubernetes=kubernetes)
    except NotAvailableError as error:
        pytest.skip(str(error))
    with testbed:
        yield testbed


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Four hosts with Slurm, two fake GPUs each, on two switches; no accounting, as on many clusters. Leave it idle."""
    options = SlurmOptions(
        gpus_per_host=2, cpus_per_host=4, switches=(2, 2), kill_wait_s=30
    )  # Slurm's default: a stopped job can save
    with make(slurm=options) as testbed:
        yield testbed.slurm


@pytest.fixture(scope="session")
def slurm_accounting() -> Iterator[Slurm]:
    """Four hosts with Slurm and slurmdbd. Leave it idle."""
    with make(slurm=SlurmOptions(accounting=True)) as testbed:
        yield testbed.slurm


@pytest.fixture(scope="session")
def ssh_hosts() -> Iterator[SshHosts]:
    """Four hosts with sshd. Leave nothing running in them."""
    with make(ssh=True) as testbed:
        yield testbed.ssh


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    """A Kubernetes control plane without nodes: pods stay Pending."""
    with make(1, kubernetes=KubeOptions(nodes=False)) as testbed:
        yield testbed.kube


@pytest.fixture
def kube_namespace(kube: Kube) -> Iterator[str]:
    """A namespace of `kube` for one test."""
    with kube.lend_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def kube_nodes() -> Iterator[Kube]:
    """A Kubernetes with three real nodes of 8 fake GPUs each, soon considered lost. Leave no pods, and nodes Ready."""
    with make(3, kubernetes=KubeOptions(gpus_per_host=8, lost_after_s=LOST_AFTER_S)) as testbed:
        yield testbed.kube


@pytest.fixture
def kube_nodes_namespace(kube_nodes: Kube) -> Iterator[str]:
    """A namespace of `kube_nodes` for one test."""
    with kube_nodes.lend_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def kube_controllers(kube_nodes: Kube) -> Kube:
    """`kube_nodes` with JobSets, TrainJobs, PyTorchJobs, TFJobs, MPIJobs and Kueue's queues added."""
    try:
        kube_nodes.add_controllers()
    except NotAvailableError as error:
        pytest.skip(str(error))
    return kube_nodes


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout's, whose limit a build would exceed
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Build Kubernetes' programs before the first test that needs them; later runs find them in a cache."""
    if item.get_closest_marker("k8s") and not os.environ.get(kube_given.VARIABLE) and not packages.why_no_hosts():
        reporter = item.config.pluginmanager.get_plugin("terminalreporter")
        for build in filter(kube_programs.missing, kube_builds.ALL):
            if reporter and not kube_programs.why_not(build):
                reporter.write_line(
                    f"building {build.name} {build.version} for tests marked k8s: once, then it is in a cache"
                )
            with suppress(NotAvailableError):  # remembered: tests that need it skip with the reason
                kube_programs.require(build)
    return (yield)
