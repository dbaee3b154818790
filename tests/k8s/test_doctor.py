"""`distlaunch doctor` with real pods, and machines that later runs leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher import quarantine

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def test_two_machines_are_examined_and_one_in_quarantine_is_left_out(pods: User) -> None:
    pods.write(".config/distlaunch/config.toml", '[clusters.lab]\nbackend = "k8s"\n')

    done = pods("doctor", "k8s", "--on", "lab", "--nodes", "2", "--spread", "--seconds", "0.2", "--output", "json", timeout_s=200)

    assert done.exit_code in (0, 1), done.stderr  # other tests may fill its disks or eat its processors meanwhile
    told = done.json["result"]
    assert {(node["host"], node["reported"]) for node in told["nodes"]} == {("n1", True), ("n2", True)}
    wrong = {finding["check"] for finding in told["findings"]} & {"versions", "clock", "ports", "mtu", "gpu"}
    assert (wrong, sorted(told["links"]["names"])) == (set(), ["n1", "n2"])

    quarantine.add("lab", {"n1": "slow"}, {"HOME": str(pods.cli.folder)})
    after = pods("run", "--on", "lab", "--nodes", "2", "--log-ranks", "all", "reduce.py")
    assert after.exit_code == 0, after.stderr
    (run,) = [path.parent.name for path in pods.cli.runs.glob("reduce-*/run.json")]
    assert {node["host"] for node in pods.state(run)["nodes"]} == {"n2"}
