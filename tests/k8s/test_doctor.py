"""`distlaunch doctor` with real pods, and nodes that later runs leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.settings import quarantine
from tests.k8s.scripts import MEET

if TYPE_CHECKING:
    from testbed import Kube
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def test_two_nodes_are_examined_and_those_in_quarantine_are_left_out(pods: User, own_kube: Kube) -> None:
    pods.write(".config/distlaunch/config.toml", '[clusters.lab]\nbackend = "k8s"\n')

    done = pods(
        "doctor",
        "k8s",
        "--on",
        "lab",
        "--nodes",
        "2",
        "--spread",
        "--seconds",
        "0.2",
        "--output",
        "json",
        timeout_s=200,
    )

    assert done.exit_code in (0, 1), done.stderr  # other tests may fill its disks or use its CPUs meanwhile
    told = done.json["result"]
    hosts = sorted(node["host"] for node in told["nodes"])
    assert (len(set(hosts)), [node["reported"] for node in told["nodes"]]) == (2, [True, True])
    wrong = {finding["check"] for finding in told["findings"]} & {"versions", "clock", "ports", "mtu", "gpu"}
    assert (wrong, sorted(told["links"]["names"])) == (set(), hosts)

    quarantine.add("lab", dict.fromkeys(hosts, "slow"), {"HOME": str(pods.cli.directory)})
    pods.write("meet.py", MEET)
    after = pods("run", "--on", "lab", "--nodes", "2", "--log-ranks", "all", "meet.py")
    assert after.exit_code == 0, after.stderr
    assert after.stdout.count("sum 3") == 2
    (run,) = [path.parent.name for path in pods.cli.runs.glob("meet-*/run.json")]
    (left,) = {node.name for node in own_kube.nodes} - set(hosts)
    assert [node["host"] for node in pods.state(run)["nodes"]] == [left, left]
