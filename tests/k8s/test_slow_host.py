"""`--stragglers quarantine` with real pods: a node that is really slow is excluded from later runs by node affinity."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from launcher.runs import directories
from testbed import wait_until
from tests.ansible.test_slow_host import STEPS, some_steps, throttle  # noqa: F401 - a fixture
from tests.chaos import processes
from tests.k8s.conftest import shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed import Kube
    from tests.command import Cli
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]
SETTINGS = '[clusters.lab]\nbackend = "k8s"\ntoleration = ["simulated"]\n'


@pytest.fixture
def four(kube_nodes: Kube, kube_nodes_namespace: str, distlaunch: Cli) -> Iterator[User]:
    """A cluster whose fourth node only takes pods that tolerate its taint."""
    distlaunch.write(".config/distlaunch/config.toml", SETTINGS)
    distlaunch.write("steps.py", STEPS)
    with kube_nodes.simulated(1), shell(distlaunch, kube_nodes, kube_nodes_namespace) as user:
        yield user


def slowed(user: User, throttle: Path) -> tuple[str, str]:  # noqa: F811
    """A run on three nodes to its end, in which the worker on node 1 is slowed: its host, and what `wait` shows."""
    work = user.cli.directory
    how = ("run", "--on", "lab", "--nodes=3", "--spread", "--exclude=sim-0", "--nproc-per-node=1", "--samples=1")
    where = (f"--volume=hostpath:{work}:{work}", f"--workdir={work}", "--stragglers=quarantine", "--detach")
    go = work / "go"
    done = user(*how, *where, "steps.py", str(go))
    assert done.exit_code == 0, done.stderr
    run = directories.find(user.cli.runs, done.stdout.strip())

    def worker() -> int:
        found = processes.of_run(run.id, "steps.py", None)
        return next((one.process.pid for one in found if (one.kind, one.node) == (processes.WORKER, 1)), 0)

    throttle.write_text(str(wait_until("the worker", worker, limit_s=120)))
    wait_until("some steps", lambda: user("logs", run.id).exit_code == 0 and some_steps(run, 1), limit_s=120)
    host = str(user.state(run.id)["nodes"][1]["host"])
    go.touch()
    waited = user("wait", run.id)
    assert waited.exit_code == 0, waited.stderr
    return host, waited.stderr


def excluded(rendered: str) -> list[str]:
    """The nodes that the affinity of the pods of a dry run excludes."""
    return re.findall(r"key: metadata.name\n +operator: NotIn\n +values:\n +- (\S+)", rendered)


def test_a_slow_node_is_excluded_from_later_runs(four: User, throttle: Path) -> None:  # noqa: F811
    slow, shown = slowed(four, throttle)

    assert f"{slow} is in lab's quarantine from now on: rank 1 takes " in shown
    listed = four("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]
    assert [host["host"] for host in listed if host["quarantine"]] == [slow]
    later = four("run", "--on", "lab", "--exclude", "sim-0", "--dry-run", "steps.py")
    assert sorted(excluded(later.stdout)) == sorted(["sim-0", slow]), later.stdout


def test_a_node_that_the_runs_pods_do_not_tolerate_is_not_counted(four: User) -> None:
    """As those of the control plane: a run of this size would wait for it."""
    four.write(".config/distlaunch/config.toml", '[clusters.lab]\nbackend = "k8s"\n')

    listed = four("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]

    states = {host["host"]: (host["state"], host["problem"]) for host in listed}
    why = "tainted simulated: only for pods that tolerate it (--toleration)"
    assert states.pop("sim-0") == ("ready, tainted", why)
    assert {*states.values()} == {("ready", None)}
