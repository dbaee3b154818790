"""`distlaunch clusters` on a real Kubernetes with three nodes of 8 GPUs each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until

if TYPE_CHECKING:
    from testbed.kube import Kube
    from tests.k8s.conftest import User

pytestmark = pytest.mark.k8s


def told(user: User, *options: str) -> dict[str, Any]:
    """The row of the only cluster."""
    (found,) = user("clusters", "--output", "json", *options).json["result"]["clusters"]
    row: dict[str, Any] = found
    return row


def test_what_is_free_and_whether_the_pods_fit(pods: User) -> None:
    pods.write("distlaunch.toml", '[clusters.gke]\nbackend = "k8s"\n')
    pods.write("x.py", "import time; time.sleep(1000)\n")
    wait_until("the pods of other tests to have gone", lambda: told(pods)["nodes_free"] == 3, limit_s=240, every_s=0.5)
    idle = told(pods, "--nodes", "3", "--gpus-per-node", "8")
    assert (idle["problem"], idle["nodes"], idle["gpus"]) == (None, 3, 24)
    assert (idle["gpus_free"], idle["own_runs"], idle["waiting"]) == (24, 0, 0)
    assert idle["start"]["at"] is not None

    pods.detached("--gpus-per-node", "6", "x.py")
    pods.detached("--gpus-per-node", "9", "x.py")  # waits for ever
    pods.kube.wait_pods(
        pods.namespace, "a pod on a node", lambda found: [each for each in found if each["spec"].get("nodeName")]
    )
    pods.kube.wait_pods(pods.namespace, "two pods", lambda found: found if len(found) == 2 else None)
    busy = told(pods, "--nodes", "3", "--gpus-per-node", "8")
    assert (busy["gpus_free"], busy["nodes_free"], busy["own_runs"], busy["waiting"]) == (18, 2, 2, 1)
    assert (busy["start"]["at"], busy["start"]["how"]) == (None, "2 of 3 places for its pods free")
    small = told(pods, "--nodes", "9", "--gpus-per-node", "2")["start"]
    assert small["at"] is not None, small

    account = pods.with_rights("sees-nothing", [])
    blind = told(account)
    assert (blind["problem"], blind["nodes"], blind["start"]["at"]) == (None, None, None)
    assert "list" in blind["start"]["how"]


@pytest.mark.parametrize(
    ("toleration", "places"),
    [
        ("", 2),
        ("team", 3),
        ("team=vision", 3),
        ("team=vision:NoSchedule", 3),
        ("team=speech", 2),
        ("team:NoExecute", 2),
    ],
)
def test_places_on_a_node_with_a_taint_count_only_if_it_is_tolerated(
    pods: User, own_kube: Kube, toleration: str, places: int
) -> None:
    named = f'toleration = ["{toleration}"]\n' if toleration else ""
    pods.write("distlaunch.toml", f'[clusters.gke]\nbackend = "k8s"\n{named}')
    wait_until("the pods of other tests to have gone", lambda: told(pods)["gpus_free"] == 24, limit_s=240, every_s=0.5)
    node = "/api/v1/nodes/n1"
    own_kube.api.patch(node, {"spec": {"taints": [{"key": "team", "value": "vision", "effect": "NoSchedule"}]}})
    try:
        found = told(pods, "--nodes", "3", "--gpus-per-node", "8")["start"]
    finally:
        own_kube.api.patch(node, {"spec": {"taints": None}})
    assert found["how"] == f"{places} of 3 places for its pods free"
    assert (found["at"] is not None) == (places == 3)
