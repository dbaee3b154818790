"""A run on two clusters, of which one has no room: the other one's pods get it, and the first has nothing left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from testbed.running import Running
from tests.k8s.conftest import KINDS, LABEL
from tests.k8s.scripts import MEET

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]


AGAIN = """
import os, time
attempt = int(os.environ.get("DISTLAUNCH_ATTEMPT", "0"))
print("attempt", attempt, flush=True)
time.sleep(0 if attempt else 600)
"""
"""The first attempt waits to be ended."""

NO_CLUSTER: dict[str, str | None] = {"KUBECONFIG": None, "DISTLAUNCH_NAMESPACE": None, "DISTLAUNCH_IMAGE": None}


@pytest.fixture
def two(pods: User) -> User:
    """A user whose settings name two clusters, of which one has no room."""
    common: dict[str, object] = {
        "backend": "k8s", "kubeconfig": str(pods.kubeconfig), "namespace": pods.namespace, "image": pods.image,
        "gpus_per_node": 0, "label": ["team=a"], "annotation": ["cost=b"],
    }  # fmt: skip
    text = ""
    for name, values in {"full": {**common, "cpu": "1000"}, "free": common}.items():
        text += f"[clusters.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    pods.cli.write("system.toml", text)
    return pods


def test_pods_that_start_get_the_run_and_those_that_wait_are_deleted(two: User) -> None:
    two.write("meet.py", MEET)

    done = two(
        "run", "--on", "full,free", "--start", "first", "--nodes", "2", "--log-ranks", "all", "meet.py", env=NO_CLUSTER
    )

    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("/2: sum 3") == 2
    assert "free starts first and gets the run; cancelling it on full" in done.stderr
    state = two("status", "last", "--output", "json", env=NO_CLUSTER).json["result"]
    tries = {each["cluster"]: each for each in state["race"]["tries"]}
    assert tries["full"]["ended_at"] is not None
    assert two.left(tries["full"]["run"]) == []
    soonest = two("run", "--on", "full,free", "--nodes", "2", "meet.py", env=NO_CLUSTER)
    assert soonest.exit_code == 0, soonest.stderr
    assert "free can start it now" in soonest.stderr


def test_a_pod_that_is_started_again_has_the_claim_though_no_launcher_lives(two: User) -> None:
    """Started again by its Job after a disruption, then by `requeue`, which forgets the objects of the run."""
    two.write("again.py", AGAIN)
    launcher = Running(
        two.cli.start(
            "run", "--on", "full,free", "--start", "first", "--max-requeues", "1", "again.py", env=two.env(NO_CLUSTER)
        )
    )
    try:
        launcher.until("attempt 0")
    finally:
        launcher.close()
    state = two("status", "last", "--output", "json", env=NO_CLUSTER).json["result"]
    name = next(each["run"] for each in state["race"]["tries"] if each["cluster"] == "free")
    (pod,) = two.pods(name)
    claim = two.kube.api.get(f"{KINDS['configmaps'].format(two.namespace)}/{name}-granted")["metadata"]
    assert (claim["labels"]["team"], claim["labels"][LABEL], claim["annotations"]) == ("a", name, {"cost": "b"})

    two.kube.api.delete(f"/api/v1/namespaces/{two.namespace}/pods/{pod['metadata']['name']}")
    two.kube.wait_pods(
        two.namespace, "the second pod's end", lambda found: [each for each in found if ended(each)] or None,
        selector=f"{LABEL}={name}",
    )  # fmt: skip

    assert two("wait", "last", env=NO_CLUSTER).exit_code == 0
    assert two("logs", "last", env=NO_CLUSTER).stdout.splitlines() == ["[0:0] attempt 0", "[0:0] attempt 1"]
    requeued = two("requeue", "last", env=NO_CLUSTER)
    assert requeued.exit_code == 0, requeued.stderr
    assert two("wait", "last", env=NO_CLUSTER).exit_code == 0
    assert two("logs", "last", env=NO_CLUSTER).stdout.splitlines()[2:] == ["[0:0] attempt 2"]


def ended(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Succeeded")
