"""Runs that are hit at random: the verdict names the right cause, nothing is left, no line is lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import make
from tests.chaos import blows
from tests.chaos.arena import Arena
from tests.k8s.conftest import shell
from tests.slurm.conftest import Login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from testbed import Host, Kube, SshHosts
    from testbed.processes import Process
    from testbed.slurm import Slurm
    from tests.chaos.conftest import Score
    from tests.command import Cli

JOB = ("--nodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "--grace", "5s")
pytestmark = pytest.mark.timeout(900)

HICCUP_S, TO_THE_END = 1.0, blows.TO_THE_END


def on(hosts: Iterable[Host]) -> Callable[[Process], Host | None]:
    """Find on which of these hosts a process runs."""
    return lambda process: next((host for host in hosts if process in host.processes()), None)


def test_runs_on_this_host(distlaunch: Cli, score: Score) -> None:
    arena = Arena("local", distlaunch, ("local", *JOB))
    score.play(arena, blows.draw(score.seed, score.tries(6)))


@pytest.mark.ssh
def test_runs_over_ssh(distlaunch: Cli, ssh_hosts: SshHosts, score: Score) -> None:
    rack = make(distlaunch, ssh_hosts)
    arena = Arena("ssh", distlaunch, rack.argv(*JOB), host_of=on(ssh_hosts.hosts))
    score.play(arena, blows.draw(score.seed, score.tries(4), transports=True, cuts_s=(HICCUP_S, TO_THE_END)))
    rack.clean()


@pytest.mark.slurm
def test_runs_on_slurm(distlaunch: Cli, slurm: Slurm, score: Score) -> None:
    login = Login(distlaunch, slurm)
    arena = Arena(
        "slurm", distlaunch, ("slurm", *JOB), env=login.env(), host_of=on(slurm.hosts), wait_restored=slurm.wait_idle
    )
    score.play(arena, blows.draw(score.seed, score.tries(4), transports=True, cuts_s=(HICCUP_S, TO_THE_END)))


@pytest.mark.k8s
def test_runs_on_kubernetes(distlaunch: Cli, kube_nodes: Kube, kube_nodes_namespace: str, score: Score) -> None:
    """Kubernetes takes minutes to give up a node that stays cut off: tests/k8s/test_disruptions.py."""

    def host_of(process: Process) -> Host | None:
        return next((node.host for node in kube_nodes.nodes if process in node.containers()), None)

    with shell(distlaunch, kube_nodes, kube_nodes_namespace) as user:
        arena = Arena("k8s", distlaunch, ("k8s", *JOB), env=user.env(), host_of=host_of)
        score.play(arena, blows.draw(score.seed, score.tries(3), cuts_s=(HICCUP_S, 5.0)))
