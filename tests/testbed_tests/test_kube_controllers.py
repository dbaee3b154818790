"""Other kinds of jobs run in the testbed's Kubernetes as their own controllers run them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed import kube_image, wait_until
from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from tests.testbed import Kube

pytestmark = pytest.mark.k8s


def apply(kube: Kube, namespace: str, *objects: dict[str, Any]) -> None:
    """Make objects, each of which its webhooks have seen."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    kube.kubectl("apply", f"--namespace={namespace}", "-f", "-", stdin=text)


def conditions(kube: Kube, path: str) -> set[str]:
    """The conditions of an object that are true."""
    told = kube.api.get(path).get("status", {}).get("conditions", ())
    return {condition["type"] for condition in told if condition["status"] == "True"}


def logs(kube: Kube, namespace: str) -> list[str]:
    """What those pods said that have ended."""
    ended = (pod for pod in kube.pods(namespace) if pod["status"]["phase"] == "Succeeded")
    return sorted(kube.log(namespace, pod["metadata"]["name"]).strip() for pod in ended)


def run(kube: Kube, namespace: str, version: str, kind: str, spec: dict[str, Any], end: str) -> None:
    """Make an object called one, and wait for the condition with which it ends."""
    apply(kube, namespace, {"apiVersion": version, "kind": kind, "metadata": {"name": "one"}, "spec": spec})
    path = f"/apis/{version}/namespaces/{namespace}/{kind.lower()}s/one"
    wait_until(f"the {kind} to end", lambda: end in conditions(kube, path), limit_s=90)


def test_a_jobset_runs(kube_controllers: Kube, kube_controllers_namespace: str) -> None:
    script = "until getent hosts one-node-0-0.one > /dev/null; do sleep 0.2; done; echo $JOB_COMPLETION_INDEX"
    job = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "template": {"spec": a_pod("", "sh", "-c", script)["spec"]},
    }
    spec = {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}]}

    run(kube_controllers, kube_controllers_namespace, "jobset.x-k8s.io/v1alpha2", "JobSet", spec, "Completed")

    assert logs(kube_controllers, kube_controllers_namespace) == ["0", "1"]


def test_a_trainjob_runs(kube_controllers: Kube, kube_controllers_namespace: str) -> None:
    trainer = {"image": kube_image.PINNED, "numNodes": 2, "command": ["sh", "-c", "echo $PET_NODE_RANK of $PET_NNODES"]}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}

    run(kube_controllers, kube_controllers_namespace, "trainer.kubeflow.org/v1alpha1", "TrainJob", spec, "Complete")

    assert logs(kube_controllers, kube_controllers_namespace) == ["0 of 2", "1 of 2"]


def test_a_pytorchjob_runs(kube_controllers: Kube, kube_controllers_namespace: str) -> None:
    stay = "until getent hosts one-worker-0; do sleep 0.2; done"  # the worker waits for the master's name in its turn
    pod = a_pod("", "sh", "-c", f"echo $RANK of $WORLD_SIZE; [ $RANK = 1 ] && exec sleep 1000; {stay} > /dev/null")["spec"]
    pod["containers"][0]["name"] = "pytorch"
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}
    spec = {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}, "runPolicy": {"cleanPodPolicy": "None"}}

    run(kube_controllers, kube_controllers_namespace, "kubeflow.org/v1", "PyTorchJob", spec, "Succeeded")

    said = [kube_controllers.log(kube_controllers_namespace, f"one-{name}-0") for name in ("master", "worker")]
    assert said == ["0 of 2\n", "1 of 2\n"]


def test_a_queue_admits_one_job_after_the_other(kube_controllers: Kube, kube_controllers_namespace: str) -> None:
    kube, namespace = kube_controllers, kube_controllers_namespace
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    quota = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1"}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
    apply(
        kube,
        namespace,
        {**kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        {
            **kueue,
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        {**kueue, "kind": "LocalQueue", "metadata": {"name": "mine"}, "spec": {"clusterQueue": "all"}},
    )
    pod = a_pod("", "sleep", "1000", resources={"requests": {"cpu": "700m"}})["spec"] | {"terminationGracePeriodSeconds": 0}
    jobs = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "mine"}},
            "spec": {"template": {"spec": pod}},
        }
        for name in ("first", "second")
    ]
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def suspended() -> dict[str, bool]:
        return {name: kube.api.get(f"{path}/{name}")["spec"].get("suspend", False) for name in ("first", "second")}

    apply(kube, namespace, *jobs)

    wait_until("one to be admitted", lambda: sorted(suspended().values()) == [False, True], limit_s=60)
    (running,) = (name for name, waits in suspended().items() if not waits)
    kube.api.delete(f"{path}/{running}", propagationPolicy="Foreground")
    other = "second" if running == "first" else "first"
    wait_until("the other to be admitted", lambda: not kube.api.get(f"{path}/{other}")["spec"]["suspend"], limit_s=60)
