"""`distlaunch k8s --kind ...` with the real controllers of JobSet, Kubeflow Trainer, its Training Operator, and Kueue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.k8s.test_pods import WAITS, stream
from tests.testbed import wait_until

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


@pytest.mark.parametrize("kind", ["jobset", "trainjob", "pytorchjob", "pods"])
def test_every_kind_gives_each_node_its_rank(kinds: User, kind: str) -> None:
    done = kinds("k8s", "--kind", kind, "--nodes", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(line.partition(" on ")[0] for line in done.stdout.splitlines()) == ["[0:0] rank 0/2", "[1:1] rank 1/2"]
    assert done.stdout.count("after 3") == 2


def test_a_deleted_pod_of_a_jobset_starts_the_run_again_with_nobody_looking(kinds: User) -> None:
    kinds.write("waits.py", WAITS)
    run = kinds.detached("--kind", "jobset", "--nodes", "2", "waits.py")
    wait_until("the workers", lambda: kinds("logs", run).stdout.count("ready") == 2, limit_s=120, every_s=0.5)

    kinds.kube.delete_pod(kinds.namespace, kinds.pods(run)[0]["metadata"]["name"])

    wait_until("its end", lambda: kinds.state(run)["exit_code"] is not None, limit_s=120, every_s=0.5)
    assert kinds.state(run)["state"] == "success", stream(kinds, run).decode()
    shown = kinds("logs", run).stdout
    assert shown.count("attempt 1 preempted") == 2
    assert shown.count("saving with time left") in (1, 2)  # the deleted pod has taken its last words along
    assert b'"event":"warning"' in stream(kinds, run) or shown.count("saving with time left") == 2


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob"])
def test_cancel_leaves_nothing_of_any_kind(kinds: User, kind: str) -> None:
    kinds.write("waits.py", WAITS)
    run = kinds.detached("--kind", kind, "waits.py")
    wait_until("the worker", lambda: "ready" in kinds("logs", run).stdout, limit_s=120, every_s=0.5)

    cancelled = kinds("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert kinds.state(run)["state"] == "cancelled"
    wait_until("nothing to be left", lambda: not kinds.left(), limit_s=60)


def test_a_failure_of_a_pytorchjob_is_told_with_its_rank(kinds: User) -> None:
    kinds.write(
        "fail.py", "import os\nif os.environ['RANK'] == '1': raise ValueError('only on one')\nimport time; time.sleep(600)\n"
    )

    done = kinds("k8s", "--kind", "pytorchjob", "--nodes", "2", "--grace", "5s", "fail.py")

    assert done.exit_code == 1
    assert "ValueError: only on one" in done.stderr
    assert "rank 1" in done.stderr


def test_kueue_admits_a_run_and_one_that_waits_says_so(kinds: User) -> None:
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]}]
    objects: list[dict[str, Any]] = [
        {**kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        {
            **kueue,
            "kind": "ClusterQueue",
            "metadata": {"name": "ours"},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        {**kueue, "kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": "ours"}},
    ]
    for item in objects:
        kinds.kube.kubectl("apply", "-n", kinds.namespace, "-f", "-", stdin=json.dumps(item))
    kinds.write("waits.py", WAITS)
    first = kinds.detached("--queue", "team", "--cpu", "700m", "waits.py")
    wait_until("the worker", lambda: "ready" in kinds("logs", first).stdout, limit_s=120, every_s=0.5)
    kinds.write("hello.py", "print('hello')\n")

    second = kinds.detached("--queue", "team", "--cpu", "700m", "hello.py")

    wait_until("the reason", lambda: "it waits to be admitted" in kinds.state(second)["detail"], limit_s=30)
    assert kinds("cancel", first).exit_code == 0
    wait_until("its turn", lambda: kinds.state(second)["exit_code"] is not None, limit_s=120, every_s=0.5)
    assert kinds.state(second)["state"] == "success"
    assert kinds("logs", second).stdout == "[0:0] hello\n"
