"""The public's scripts on two hosts with Slurm, sshd and Kubernetes: the same results as under torchrun here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed import fixtures
from testbed.kube_conf import KubeOptions
from testbed.slurm_conf import SlurmOptions
from tests.k8s.conftest import shell
from tests.slurm.conftest import Login, idle_afterwards
from tests.thirdparty import running
from tests.thirdparty.catalog import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from testbed import Kube, Slurm, SshHosts
    from tests.command import Cli
    from tests.thirdparty.environment import Environment
    from tests.thirdparty.running import Digits
    from tests.thirdparty.script import Script

    Reference = Callable[[Script, int], Digits]

pytestmark = [pytest.mark.torch, pytest.mark.timeout(2000)]
each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@pytest.fixture(scope="module")
def hosts_with_slurm() -> Iterator[Slurm]:
    """Two hosts."""
    with fixtures.make(2, slurm=SlurmOptions(cpus_per_host=2)) as testbed:
        yield testbed.slurm


@pytest.fixture(scope="module")
def hosts_with_sshd() -> Iterator[SshHosts]:
    """Two hosts."""
    with fixtures.make(2, ssh=True) as testbed:
        yield testbed.ssh


@pytest.fixture(scope="module")
def nodes() -> Iterator[Kube]:
    """A Kubernetes with two nodes."""
    with fixtures.make(2, kubernetes=KubeOptions()) as testbed:
        yield testbed.kube


def arguments(script: Script, environment: Environment, directory: Path) -> list[str]:
    """The arguments that are the same for all backends."""
    shape = (f"--nodes={running.WORKERS}", "--nproc-per-node=1", "--log-ranks=all", f"--python={environment.python}")
    env = [f"--env={name}={value}" for name, value in running.variables(script, environment, directory).items()]
    return [*shape, *env]


@each
@pytest.mark.slurm
def test_results_on_slurm_are_the_same(
    script: Script,
    environment: Environment,
    reference: Reference,
    hosts_with_slurm: Slurm,
    distlaunch: Cli,
    tmp_path: Path,
) -> None:
    wanted = reference(script, running.WORKERS if script.each_host_speaks else 1)
    directory = running.prepare(script, environment, tmp_path / "slurm")
    with idle_afterwards(Login(distlaunch, hosts_with_slurm)) as login:
        argv = arguments(script, environment, directory)

        done = login("slurm", *argv, *running.words(script, environment), cwd=directory, env={"PYTHONPATH": None})

    text = running.shown(done.stdout, done.stderr)
    assert done.exit_code == 0, done.stderr
    assert running.collect(script, directory, text) == wanted


@each
@pytest.mark.ssh
def test_results_over_ssh_are_the_same(
    script: Script,
    environment: Environment,
    reference: Reference,
    hosts_with_sshd: SshHosts,
    distlaunch: Cli,
    tmp_path: Path,
) -> None:
    wanted = reference(script, running.WORKERS if script.each_host_speaks else 1)
    directory = running.prepare(script, environment, tmp_path / "ssh")
    where = (f"--inventory={hosts_with_sshd.inventory}", f"--remote-dir={tmp_path / 'remote'}", "--in-place")
    argv = arguments(script, environment, directory)

    done = distlaunch(
        "ansible",
        *where,
        *argv,
        *running.words(script, environment),
        cwd=directory,
        env={"PYTHONPATH": None},
        timeout_s=running.LIMIT_S,
    )

    text = running.shown(done.stdout, done.stderr)
    assert done.exit_code == 0, done.stderr
    assert running.collect(script, directory, text) == wanted


@each
@pytest.mark.k8s
def test_results_on_kubernetes_are_the_same(
    script: Script, environment: Environment, reference: Reference, nodes: Kube, distlaunch: Cli, tmp_path: Path
) -> None:
    wanted = reference(script, running.WORKERS if script.each_host_speaks else 1)
    directory = running.prepare(script, environment, tmp_path / "k8s")
    volumes = (
        f"--volume=hostpath:{environment.directory}:{environment.directory}:ro",
        f"--volume=hostpath:{directory}:{directory}",
    )
    with nodes.lend_namespace() as namespace, shell(distlaunch, nodes, namespace) as user:
        argv = (*volumes, f"--workdir={directory}", *arguments(script, environment, directory))

        done = user(
            "k8s",
            *argv,
            *running.words(script, environment),
            cwd=directory,
            env={"PYTHONPATH": None},
            timeout_s=running.LIMIT_S,
        )

    text = running.shown(done.stdout, done.stderr)
    assert done.exit_code == 0, done.stderr
    assert running.collect(script, directory, text) == wanted
