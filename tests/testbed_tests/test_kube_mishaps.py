"""What happens to real nodes can happen to the testbed's: they are cut off, die, lose their kubelet, and recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from testbed import Kube
    from testbed.kube_node import KubeNode

pytestmark = pytest.mark.k8s

COUNT = "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.2; done"


def count_on(kube: Kube, node: KubeNode, namespace: str, given_up_after_s: int | None = None) -> str:
    """Start a pod on this node that counts; return its name."""
    name = f"on-{node.name}"
    pod = a_pod(name, "sh", "-c", COUNT)
    waits = {} if given_up_after_s is None else {"tolerationSeconds": given_up_after_s}
    tolerations = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", **waits}
        for what in ("unreachable", "not-ready")
    ]
    selector = {"kubernetes.io/hostname": node.name}
    pod["spec"] |= {"nodeSelector": selector, "terminationGracePeriodSeconds": 1, "tolerations": tolerations}
    kube.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)
    kube.wait_log(namespace, name, "it to count", lambda lines: len(lines) > 1)
    return name


def deleted(pods: list[dict[str, Any]], name: str) -> bool:
    """Whether a pod still exists, but is being deleted."""
    return any(pod["metadata"]["name"] == name and "deletionTimestamp" in pod["metadata"] for pod in pods)


def test_nodes_that_are_cut_off_or_die_are_lost_and_recover(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    """Pods of a node that is cut off run until it is back; those of one that dies have died. Both at once."""
    kube, namespace = kube_nodes, kube_nodes_namespace
    dies, cut, _ = kube.nodes
    stays, given_up = count_on(kube, dies, namespace), count_on(kube, cut, namespace, given_up_after_s=2)
    try:
        cut.host.cut_off()
        dies.kill()
        assert dies.containers() == []
        cut.wait_lost()
        dies.wait_lost()
        kube.wait_pods(namespace, "the pod to be given up", lambda pods: deleted(pods, given_up))
        assert any("sleep" in process.command() for process in cut.containers())
    finally:
        cut.host.reconnect()
        dies.start()

    ended = kube.wait_pod(namespace, stays, "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] != 0
    kube.wait_pods(
        namespace, f"{given_up} to be removed", lambda pods: [pod["metadata"]["name"] for pod in pods] == [stays]
    )
    cut.wait_ready()
    assert not [process for process in cut.containers() if COUNT in process.command()]


def test_pods_keep_running_without_kubelet_and_api_server(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    kube, namespace, node = kube_nodes, kube_nodes_namespace, kube_nodes.nodes[1]
    name = count_on(kube, node, namespace)
    before = {process for process in node.containers() if COUNT in process.command()}

    node.stop_kubelet()
    kube.restart_api()
    node.start_kubelet()

    node.wait_ready()
    so_far = len(kube.wait_log(namespace, name, "its log to be there", list))
    so_far = max(so_far, len(kube.log(namespace, name).splitlines()))
    kube.wait_log(namespace, name, f"it to count beyond {so_far}", lambda lines: lines if len(lines) > so_far else None)
    # The same shell still counts; for a moment each of its children has its command line too.
    assert before & {process for process in node.containers() if COUNT in process.command()}


def test_a_deleted_pod_gets_sigterm_and_its_grace_period(kube_nodes: Kube, kube_nodes_namespace: str) -> None:
    kube, namespace = kube_nodes, kube_nodes_namespace
    # The pod may be removed before its log is read, so its exit code shows that it had time.
    script = "trap 'sleep 0.5; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    pod = a_pod("one", "sh", "-c", script)
    pod["metadata"]["finalizers"] = ["distlaunch.test/look"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    kube.api.post(path, pod)
    kube.wait_log(namespace, "one", "it to be up", lambda lines: "up" in lines)

    kube.evict(namespace, "one")

    ended = kube.wait_pod(namespace, "one", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    kube.api.patch(f"{path}/one", {"metadata": {"finalizers": None}})
