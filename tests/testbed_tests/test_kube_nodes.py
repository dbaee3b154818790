"""The testbed's nodes are real: they run pods, whose network, names, limits and exits are those of Kubernetes."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.k8s.scripts import MEET
from tests.plugins import failures
from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Kube

pytestmark = pytest.mark.k8s

MEETS = f"""
import os
os.environ["RANK"] = os.environ["JOB_COMPLETION_INDEX"]
{MEET}
"""
HUNGRY = "b = bytearray(300 << 20); print(len(b))"
LOOK = f"import os, sys, torch; print(sys.prefix == {sys.prefix!r}, os.path.exists({__file__!r}), os.listdir('/tmp'))"


def a_group(name: str) -> list[dict[str, Any]]:
    """Six pods that find one another by a headless Service, two on each node."""
    env = [{"name": "MASTER_ADDR", "value": f"{name}-0.{name}"}, {"name": "MASTER_PORT", "value": "29500"}]
    env += [{"name": "WORLD_SIZE", "value": "6"}]
    spec = a_pod("", "python3", "-c", MEETS, env=env)["spec"] | {"subdomain": name, "terminationGracePeriodSeconds": 0}
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
                "completions": 6,
                "parallelism": 6,
                "backoffLimit": 0,
                "template": {"spec": spec},
            },
        },
    ]


@pytest.fixture(scope="module")
def namespace(kube_nodes: Kube) -> Iterator[str]:
    """A namespace in which the pods of all these tests are started at once."""
    pods = [
        a_pod("absent", "true", image="distlaunch.test/absent:1"),
        a_pod("hungry", "python3", "-c", HUNGRY, resources={"limits": {"memory": "64Mi"}}),
        a_pod("looks", "python3", "-c", LOOK),
        *(a_pod(f"gpu-{n}", "sleep", "1000", resources={"limits": {"nvidia.com/gpu": "8"}}) for n in range(4)),
    ]
    items = [*a_group("group"), *({"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    with kube_nodes.lend_namespace() as name:
        kube_nodes.kubectl("apply", f"--namespace={name}", "-f", "-", stdin=text)
        yield name


def test_six_pods_on_three_nodes_meet_by_dns_names(kube_nodes: Kube, namespace: str) -> None:
    def ended(pods: list[dict[str, Any]]) -> bool:
        failed = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Failed"]
        # The others are then deleted.
        assert not failed, [kube_nodes.log(namespace, name) for name in failed]
        return len(pods) == 6 and all(pod["status"]["phase"] == "Succeeded" for pod in pods)

    kube_nodes.wait_pods(namespace, "all pods to end", ended, selector="job-name=group")
    pods = kube_nodes.pods(namespace, "job-name=group")
    logs = [kube_nodes.log(namespace, pod["metadata"]["name"]) for pod in pods]
    assert logs == [f"rank {rank}/6: sum 21 on group-{rank}\n" for rank in range(6)]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["n1", "n1", "n2", "n2", "n3", "n3"]


def test_a_missing_image_is_reported(kube_nodes: Kube, namespace: str) -> None:
    def missed(pods: list[dict[str, Any]]) -> bool:
        statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", ())]
        reasons = {
            status["state"].get("waiting", {}).get("reason")
            for status in statuses
            if status["image"].endswith("absent:1")
        }
        return bool(reasons & {"ErrImagePull", "ImagePullBackOff"})

    kube_nodes.wait_pods(namespace, "the image to be missed", missed)


def test_gpus_are_scheduled(kube_nodes: Kube, namespace: str) -> None:
    kube_nodes.wait_event(namespace, "Insufficient nvidia.com/gpu")

    placed = [
        pod["spec"].get("nodeName") for pod in kube_nodes.pods(namespace) if pod["metadata"]["name"].startswith("gpu-")
    ]
    assert sorted(map(str, placed)) == ["None", "n1", "n2", "n3"]


def test_a_pod_beyond_its_memory_is_killed(kube_nodes: Kube, namespace: str) -> None:
    ended = kube_nodes.wait_pod(namespace, "hungry", "Failed")

    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_the_image_has_this_hosts_python_with_torch_and_none_of_its_other_directories(
    kube_nodes: Kube, namespace: str
) -> None:
    places = [Path(directory).parts for directory in (sys.prefix, sys.base_prefix)]
    left = sorted({parts[2] for parts in places if parts[:2] == ("/", "tmp")})  # only if Python itself is there

    kube_nodes.wait_pod(namespace, "looks", "Succeeded")

    assert kube_nodes.log(namespace, "looks") == f"True False {left}\n"


def test_logs_of_its_daemons_are_kept_when_a_test_fails(kube_nodes: Kube, tmp_path: Path) -> None:
    failures.keep_logs(tmp_path)

    names = {path.name for path in tmp_path.glob("testbed-*/*") if path.stat().st_size}
    assert {"kube-apiserver.log", "etcd.log", "kubelet-n1.log", "containerd-n1.log"} <= names


def test_kubelets_obey_the_api_server_only(kube_nodes: Kube) -> None:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    for node in kube_nodes.nodes:
        with pytest.raises(HTTPError) as refused:
            urlopen(f"https://{node.host.address}:10250/pods", context=unverified, timeout=60)
        with refused.value as answer:
            assert answer.code == 401
