"""What befalls real nodes can befall the testbed's: they are cut off, they die, their kubelet ends; and all comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed import KubeOptions, fixtures, wait_until
from tests.testbed.kube_api import ApiError
from tests.testbed_tests.test_kube import a_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed import Kube
    from tests.testbed.kube_node import KubeNode

pytestmark = pytest.mark.k8s

COUNT = "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.2; done"


@pytest.fixture(scope="module")
def fragile() -> Iterator[Kube]:
    """Nodes that are lost, and their pods evicted, after a few seconds."""
    with fixtures.make(2, kubernetes=KubeOptions(lost_after_s=6, evicted_after_s=3)) as testbed:
        yield testbed.kube


@pytest.fixture
def namespace(fragile: Kube) -> Iterator[str]:
    """A namespace for one test, after which all nodes are Ready."""
    with fragile.lend_namespace() as name:
        yield name
    for node in fragile.nodes:
        node.wait_ready()


def count_on(kube: Kube, node: KubeNode, namespace: str, **more: Any) -> None:
    """A pod on this node that counts."""
    pod = a_pod("one", "sh", "-c", COUNT)
    pod["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node.name}, "terminationGracePeriodSeconds": 1, **more}
    kube.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)
    kube.wait_pod(namespace, "one", "Running")
    wait_until("the pod to count", lambda: kube.log(namespace, "one"))


def counted(kube: Kube, namespace: str) -> int:
    """How far it has come; 0 while its kubelet does not know it, which has just begun."""
    try:
        return len(kube.log(namespace, "one").splitlines())
    except ApiError:
        return 0


def test_a_node_that_is_cut_off_is_lost_and_its_pods_are_deleted(fragile: Kube, namespace: str) -> None:
    node = fragile.nodes[1]
    count_on(fragile, node, namespace)
    try:
        node.host.cut_off()
        node.wait_lost()
        wait_until("the pod to be given up", lambda: deleted(fragile, namespace), limit_s=60)
        assert any("sleep" in process.command() for process in node.containers())
    finally:
        node.host.reconnect()

    wait_until("the pod to be gone", lambda: fragile.pod(namespace, "one") is None, limit_s=60)


def deleted(kube: Kube, namespace: str) -> bool:
    """Whether the pod is there still, and is to go."""
    pod = kube.pod(namespace, "one")
    return bool(pod and pod["metadata"].get("deletionTimestamp"))


def test_a_node_that_dies_takes_its_pods_with_it_and_comes_back(fragile: Kube, namespace: str) -> None:
    node = fragile.nodes[0]
    forever = [{"key": f"node.kubernetes.io/{what}", "operator": "Exists"} for what in ("unreachable", "not-ready")]
    count_on(fragile, node, namespace, tolerations=forever)
    try:
        node.kill()
        assert node.containers() == []
        node.wait_lost()
    finally:
        node.start()

    ended = fragile.wait_pod(namespace, "one", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] != 0


def test_pods_run_on_without_kubelet_and_api_server(fragile: Kube, namespace: str) -> None:
    node = fragile.nodes[1]
    count_on(fragile, node, namespace)
    before = {process for process in node.containers() if "while" in process.command()}

    node.stop_kubelet()
    fragile.restart_api()
    node.start_kubelet()

    node.wait_ready()
    so_far = wait_until("the pod's log to be there", lambda: counted(fragile, namespace))
    wait_until("the pod to count on", lambda: counted(fragile, namespace) > so_far)
    assert before == {process for process in node.containers() if "while" in process.command()}
    assert len(before) == 1


def test_a_deleted_pod_gets_sigterm_and_its_grace(fragile: Kube, namespace: str) -> None:
    script = "trap 'echo got it; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    pod = a_pod("one", "sh", "-c", script)
    pod["metadata"]["finalizers"] = ["distlaunch.test/look"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    fragile.api.post(path, pod)
    fragile.wait_pod(namespace, "one", "Running")
    wait_until("the pod to be up", lambda: "up" in fragile.log(namespace, "one"))

    fragile.evict(namespace, "one")

    ended = fragile.wait_pod(namespace, "one", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    fragile.api.patch(f"{path}/one", {"metadata": {"finalizers": None}})
