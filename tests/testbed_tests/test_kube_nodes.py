"""The testbed's nodes are real: they run pods, whose network, names, limits and ends are those of Kubernetes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed import wait_until
from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from tests.testbed import Kube

pytestmark = pytest.mark.k8s

REDUCE = """
import os, socket, time
import torch, torch.distributed as dist
deadline = time.time() + 200
while True:
    try:
        socket.getaddrinfo(os.environ["MASTER_ADDR"], 29500)
        break
    except socket.gaierror:
        assert time.time() < deadline, "no such name"
        time.sleep(0.2)
dist.init_process_group("gloo", rank=int(os.environ["JOB_COMPLETION_INDEX"]), world_size=4)
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
print("sum", total.item(), socket.gethostname())
"""


def a_gang(name: str) -> list[dict[str, Any]]:
    """Four pods that find one another by a headless Service."""
    env = [{"name": "MASTER_ADDR", "value": f"{name}-0.{name}"}, {"name": "MASTER_PORT", "value": "29500"}]
    env += [{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    spec = a_pod("", "python3", "-c", REDUCE, env=env)["spec"] | {"subdomain": name, "terminationGracePeriodSeconds": 0}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spec |= {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"job-name": name}}}]}
    selector = {"job-name": name}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "completionMode": "Indexed",
                "completions": 4,
                "parallelism": 4,
                "backoffLimit": 0,
                "template": {"spec": spec},
            },
        },
    ]


@pytest.mark.timeout(300)
def test_four_pods_on_two_nodes_reduce_over_dns_names(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": a_gang("gang")})

    kube_nodes.kubectl("apply", f"--namespace={kube_nodes_namespace}", "-f", "-", stdin=text)

    def ended() -> bool:
        pods = kube_nodes.pods(kube_nodes_namespace)
        failed = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Failed"]  # the others are then deleted
        assert not failed, [kube_nodes.log(kube_nodes_namespace, name) for name in failed]
        return len(pods) == 4 and all(pod["status"]["phase"] == "Succeeded" for pod in pods)

    wait_until("all pods to end", ended, limit_s=240)
    pods = kube_nodes.pods(kube_nodes_namespace)
    said = [kube_nodes.log(kube_nodes_namespace, pod["metadata"]["name"]).split()[-3:] for pod in pods]
    assert said == [["sum", "10", f"gang-{index}"] for index in range(4)]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["n1", "n1", "n2", "n2"]


def test_an_image_that_is_not_there_fails_at_once(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    pod = a_pod("one", "true", image="distlaunch.test/absent:1")

    kube_nodes.api.post(f"/api/v1/namespaces/{kube_nodes_namespace}/pods", pod)

    def waiting() -> bool:
        statuses = (kube_nodes.pod(kube_nodes_namespace, "one") or {})["status"].get("containerStatuses", ())
        return any(
            status["state"].get("waiting", {}).get("reason") in {"ErrImagePull", "ImagePullBackOff"} for status in statuses
        )

    wait_until("the image to be missed", waiting, limit_s=60)


def test_gpus_are_scheduled(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    path = f"/api/v1/namespaces/{kube_nodes_namespace}/pods"
    for name in ("one", "two", "three"):
        kube_nodes.api.post(path, a_pod(name, "sleep", "1000", resources={"limits": {"nvidia.com/gpu": "8"}}))

    wait_until(
        "one of three to wait for GPUs",
        lambda: any("Insufficient nvidia.com/gpu" in event for event in kube_nodes.events(kube_nodes_namespace)),
    )
    placed = [pod["spec"].get("nodeName") for pod in kube_nodes.pods(kube_nodes_namespace)]
    assert {"n1", "n2"} == set(filter(None, placed))


def test_a_pod_beyond_its_memory_is_killed(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    hungry = ("python3", "-c", "b = bytearray(300 << 20); print(len(b))")
    pod = a_pod("one", *hungry, resources={"limits": {"memory": "64Mi"}})

    kube_nodes.api.post(f"/api/v1/namespaces/{kube_nodes_namespace}/pods", pod)

    ended = kube_nodes.wait_pod(kube_nodes_namespace, "one", "Failed", limit_s=60)
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_the_image_has_this_machines_python_and_nothing_of_its_folders(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    here = str(Path(__file__))
    look = f"import os, sys; print(sys.prefix == {sys.prefix!r}, os.path.exists({here!r}), os.listdir('/tmp'))"
    places = [Path(folder).parts for folder in (sys.prefix, sys.base_prefix)]
    left = sorted({parts[2] for parts in places if parts[:2] == ("/", "tmp")})  # only where Python itself is there

    kube_nodes.api.post(f"/api/v1/namespaces/{kube_nodes_namespace}/pods", a_pod("one", "python3", "-c", look))

    kube_nodes.wait_pod(kube_nodes_namespace, "one", "Succeeded", "Failed")
    assert kube_nodes.log(kube_nodes_namespace, "one") == f"True False {left}\n"
