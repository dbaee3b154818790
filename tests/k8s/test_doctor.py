"""`distlaunch doctor` with real pods, and nodes that later runs leave out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from launcher.settings import quarantine
from testbed import wait_until
from tests.k8s.scripts import MEET

if TYPE_CHECKING:
    from testbed import Kube
    from tests.k8s.conftest import User

ON = ("--on", "lab")
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

    lists = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    owners = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}
    waits = pods.follow("--name", "waits", "--gpus-per-node", "2", "--no-python", "sleep", "600")
    host = wait_until(
        "its pod to have a node",
        lambda: "".join(pod["spec"].get("nodeName", "") for pod in pods.pods(waits.run)),
    )
    all_hosts = {each["host"]: each for each in pods("hosts", *ON, "--output", "json").json["result"]["hosts"]}
    poor = pods.with_rights("poor", [lists, owners])("hosts", *ON)
    nobody = pods.with_rights("nobody", [])("hosts", *ON)
    pods("cancel", waits.run)

    assert {each["state"] for each in all_hosts.values()} == {"ready"}
    assert {name: each["gpus_used"] for name, each in all_hosts.items() if each["gpus_used"]} == {host: 2}
    assert all_hosts[host]["gpus_total"] > 2
    examined = {name for name, each in all_hosts.items() if each["doctor"] and each["doctor"]["run"] == told["run"]}
    assert (len(all_hosts), examined) == (len(own_kube.nodes), set(hosts))
    assert [lease["run"] for lease in all_hosts[host]["leases"]] == [waits.run]
    assert re.search(rf"(?m)^{host} +unknown +.*{waits.run} ", poor.stdout), poor.stdout + poor.stderr
    assert "you may not list the cluster's nodes" in poor.stderr
    assert (nobody.exit_code, nobody.stderr.count("error[")) == (3, 1)

    quarantine.add("lab", dict.fromkeys(hosts, "slow"), {"HOME": str(pods.cli.directory)})
    pods.write("meet.py", MEET)
    after = pods("run", "--on", "lab", "--nodes", "2", "--log-ranks", "all", "meet.py")
    assert after.exit_code == 0, after.stderr
    assert after.stdout.count("sum 3") == 2
    (run,) = [path.parent.name for path in pods.cli.runs.glob("meet-*/run.json")]
    (left,) = {node.name for node in own_kube.nodes} - set(hosts)
    assert [node["host"] for node in pods.state(run)["nodes"]] == [left, left]
