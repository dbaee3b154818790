"""Simulated nodes, on which a Job with as many pods appears to run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from testbed.kube_watch import wait_for
from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from testbed import Kube

pytestmark = pytest.mark.k8s


NODES = 100
"""This tests the same as a thousand, in a tenth of the time."""


def test_many_pods_run_each_on_a_node_of_its_own_until_they_are_deleted(kube: Kube, kube_namespace: str) -> None:
    namespace = kube_namespace
    pod = a_pod("", "true", resources={"limits": {"nvidia.com/gpu": "8"}})["spec"]
    many = {"completionMode": "Indexed", "completions": NODES, "parallelism": NODES, "template": {"spec": pod}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "many", "namespace": namespace}, "spec": many}
    with kube.simulated(NODES):
        kube.kubectl("apply", "-f", "-", stdin=json.dumps(job))

        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        wait_for(kube.api, path, "all pods to run", lambda found: found[0].get("status", {}).get("ready") == NODES)
        assert len({pod["spec"]["nodeName"] for pod in kube.pods(namespace)}) == NODES
        kube.kubectl("delete", "job", "many", f"--namespace={namespace}", "--wait=false")
        kube.wait_none(f"/api/v1/namespaces/{namespace}/pods")

    assert kube.api.get("/api/v1/nodes")["items"] == []
