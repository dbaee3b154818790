"""Other kinds of jobs run in the testbed's Kubernetes as their own controllers run them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from testbed import kube_image
from testbed.kube_watch import wait_for
from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from testbed import Kube

pytestmark = pytest.mark.k8s


def apply(kube: Kube, namespace: str, *objects: dict[str, Any]) -> None:
    """Create objects, which webhooks have checked."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    kube.kubectl("apply", f"--namespace={namespace}", "-f", "-", stdin=text)


def a_kind(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An object of a kind."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def wait_end(kube: Kube, namespace: str, item: dict[str, Any], end: str) -> None:
    """Wait for the condition with which an object ends."""

    def ended(found: list[dict[str, Any]]) -> bool:
        conditions = found[0].get("status", {}).get("conditions", ())
        true = {condition["type"] for condition in conditions if condition["status"] == "True"}
        assert "Failed" not in true, kube.told(namespace)
        return end in true

    path = f"/apis/{item['apiVersion']}/namespaces/{namespace}/{item['kind'].lower()}s"
    wait_for(
        kube.api, path, f"the {item['kind']} to end", ended, fieldSelector=f"metadata.name={item['metadata']['name']}"
    )


def logs(kube: Kube, namespace: str, start: str) -> list[str]:
    """The logs of the pods whose names have this start."""
    names = [pod["metadata"]["name"] for pod in kube.pods(namespace)]
    return sorted(kube.log(namespace, name).strip() for name in names if name.startswith(start))


def operated(name: str, script: str) -> dict[str, Any]:
    """One pod of an operator's job, whose container has this name."""
    pod = a_pod("", "sh", "-c", script)["spec"]
    pod["containers"][0]["name"] = name
    return {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}


def test_jobs_of_all_controllers_run(kube_controllers: Kube, kube_nodes_namespace: str) -> None:
    """All at once."""
    kube, namespace = kube_controllers, kube_nodes_namespace
    script = "until getent hosts set-node-0-0.set > /dev/null; do sleep 0.2; done; echo $JOB_COMPLETION_INDEX"
    job = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "template": {"spec": a_pod("", "sh", "-c", script)["spec"]},
    }
    job_set = {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}]}
    trainer = {"image": kube_image.PINNED, "numNodes": 2, "command": ["sh", "-c", "echo $PET_NODE_RANK of $PET_NNODES"]}
    train_job = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    stay = "until getent hosts torch-worker-0; do sleep 0.2; done"  # the worker waits for the master's name too
    script = f"echo $RANK of $WORLD_SIZE; [ $RANK = 1 ] && exec sleep 1000; {stay} > /dev/null"
    replica = operated("pytorch", script)
    replicas = {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}, "runPolicy": {"cleanPodPolicy": "None"}}
    config = operated("tensorflow", "echo $TF_CONFIG | grep -o '.task.*[01]'") | {"replicas": 2}
    launcher, worker = operated("node", "wc -l < /etc/mpi/hostfile"), operated("node", "echo $K_MPI_JOB_ROLE")
    mpi = {"runLauncherAsWorker": True, "mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker}}
    ends = {"JobSet": "Completed", "TrainJob": "Complete"}
    items = [
        a_kind("jobset.x-k8s.io/v1alpha2", "JobSet", "set", job_set),
        a_kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "train", train_job),
        a_kind("kubeflow.org/v1", "PyTorchJob", "torch", replicas),
        a_kind("kubeflow.org/v1", "TFJob", "tf", {"successPolicy": "AllWorkers", "tfReplicaSpecs": {"Worker": config}}),
        a_kind("kubeflow.org/v2beta1", "MPIJob", "mpi", mpi),
    ]

    apply(kube, namespace, *items)

    for item in items:
        wait_end(kube, namespace, item, ends.get(item["kind"], "Succeeded"))
    assert logs(kube, namespace, "set-") == ["0", "1"]
    assert logs(kube, namespace, "train-") == ["0 of 2", "1 of 2"]
    assert logs(kube, namespace, "torch-") == ["0 of 2", "1 of 2"]
    assert logs(kube, namespace, "tf-") == [f'"task":{{"type":"worker","index":{index}' for index in (0, 1)]
    assert logs(kube, namespace, "mpi-launcher-") == ["2"]
    kube.wait_log(namespace, "mpi-worker-0", "its role", lambda lines: "worker" in lines)


def test_a_queue_admits_one_job_after_another(kube_controllers: Kube, kube_nodes_namespace: str) -> None:
    kube, namespace = kube_controllers, kube_nodes_namespace
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
    pod = a_pod("", "sleep", "1000", resources={"requests": {"cpu": "700m"}})["spec"] | {
        "terminationGracePeriodSeconds": 0
    }
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

    def admitted(found: list[dict[str, Any]]) -> list[str]:
        return [item["metadata"]["name"] for item in found if not item["spec"].get("suspend")]

    apply(kube, namespace, *jobs)

    (running,) = wait_for(kube.api, path, "one to be admitted", admitted)
    other = "second" if running == "first" else "first"
    kube.wait_event(namespace, "insufficient unused quota")
    kube.api.delete(f"{path}/{running}", propagationPolicy="Foreground")
    wait_for(kube.api, path, "the other to be admitted", lambda found: other in admitted(found))
