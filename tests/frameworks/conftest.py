"""The four backends, each with a cluster that other tests use, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.place import Place
from tests.k8s.conftest import shell
from tests.slurm.conftest import Login, idle_afterwards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed import Kube, Slurm, SshHosts
    from tests.command import Cli


@pytest.fixture
def local(distlaunch: Cli) -> Place:
    """Two simulated nodes."""
    return Place("local", distlaunch).prepare()


@pytest.fixture
def on_slurm(slurm: Slurm, distlaunch: Cli) -> Iterator[Place]:
    """Leaves the cluster idle."""
    with idle_afterwards(Login(distlaunch, slurm)) as login:
        yield Place("slurm", distlaunch, env=login.env()).prepare()


@pytest.fixture
def over_ssh(ssh_hosts: SshHosts, distlaunch: Cli, tmp_path: Path) -> Iterator[Place]:
    """Hosts that see the working directory, and whose runs have directories of their own."""
    remote = tmp_path / "remote"
    remote.mkdir()
    for host in ssh_hosts.hosts:
        host.private_directory(remote)
    yield Place(
        "ansible", distlaunch, (f"--inventory={ssh_hosts.inventory}", f"--remote-dir={remote}", "--in-place")
    ).prepare()
    for host in ssh_hosts.hosts:
        host.shared_directory(remote)


@pytest.fixture
def in_pods(kube_nodes: Kube, kube_nodes_namespace: str, distlaunch: Cli, tmp_path: Path) -> Iterator[Place]:
    """Pods that see the working directory."""
    with shell(distlaunch, kube_nodes, kube_nodes_namespace) as user:
        yield Place("k8s", distlaunch, (f"--workdir={tmp_path / 'work'}",), user.env(), mounts=True).prepare()
