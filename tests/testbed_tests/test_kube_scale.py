"""Simulated nodes, on which a Job of as many pods seems to run."""

from __future__ import annotations

import json

import pytest

from tests.testbed import KubeOptions, fixtures, wait_until
from tests.testbed_tests.test_kube import a_pod

pytestmark = pytest.mark.k8s


NODES = 100
"""The same as with the thousand of `kube_thousand`, in a tenth of the time."""


def test_many_pods_run_each_on_a_node_of_its_own_until_they_are_deleted() -> None:
    with fixtures.make(1, kubernetes=KubeOptions(nodes=False, simulated_nodes=NODES, lost_after_s=600)) as testbed:
        kube = testbed.kube
        namespace = kube.namespace()
        pod = a_pod("", "true", resources={"limits": {"nvidia.com/gpu": "8"}})["spec"]
        many = {"completionMode": "Indexed", "completions": NODES, "parallelism": NODES, "template": {"spec": pod}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "many", "namespace": namespace}, "spec": many}

        kube.kubectl("apply", "-f", "-", stdin=json.dumps(job))

        status = f"/apis/batch/v1/namespaces/{namespace}/jobs/many/status"
        wait_until("all pods to run", lambda: kube.api.get(status)["status"].get("ready") == NODES, limit_s=120)
        assert len({pod["spec"]["nodeName"] for pod in kube.pods(namespace)}) == NODES
        kube.delete_namespace(namespace)
        wait_until("all pods to be gone", lambda: not kube.pods(namespace), limit_s=120)
