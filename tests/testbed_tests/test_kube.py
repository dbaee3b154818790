"""The testbed's Kubernetes has a real control plane, with users, rights and limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from testbed import TestbedError, WaitError, kube_image
from testbed.kube_api import ApiError

if TYPE_CHECKING:
    from testbed import Kube

pytestmark = pytest.mark.k8s


def a_pod(name: str, *command: str, **more: Any) -> dict[str, Any]:
    """A pod of one container with the testbed's image."""
    image = {"image": kube_image.IMAGE, "imagePullPolicy": "IfNotPresent"}
    container = {"name": "main", **image, "command": list(command), **more}
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def test_the_administrator_may_do_everything_with_kubectl(kube: Kube, kube_namespace: str) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "four", "namespace": kube_namespace},
        "spec": {
            "completionMode": "Indexed",
            "completions": 4,
            "parallelism": 4,
            "template": {"spec": a_pod("", "true")["spec"]},
        },
    }

    kube.kubectl("apply", "-f", "-", stdin=json.dumps(job))

    kube.wait_pods(kube_namespace, "the Job to have its pods", lambda pods: len(pods) == 4, selector="job-name=four")
    kube.wait_event(kube_namespace, "no nodes")


def test_an_account_may_do_what_its_rules_allow_and_only_in_its_namespace(kube: Kube, kube_namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    kubeconfig = kube.account(kube_namespace, "dev", rules)

    allowed = kube.kubectl("get", "pods", kubeconfig=kubeconfig, check=False)
    elsewhere = kube.kubectl("get", "pods", "--namespace=default", kubeconfig=kubeconfig, check=False)
    more = kube.kubectl("get", "services", kubeconfig=kubeconfig, check=False)

    assert allowed.returncode == 0, allowed.stderr
    assert 'cannot list resource "pods" in API group "" in the namespace "default"' in elsewhere.stderr
    assert 'cannot list resource "services"' in more.stderr


def test_a_user_without_rights_is_authenticated_and_one_with_an_expired_certificate_is_not(kube: Kube) -> None:
    stranger = kube.kubectl("get", "pods", kubeconfig=kube.stranger(), check=False)
    expired = kube.kubectl("get", "pods", kubeconfig=kube.expired(), check=False)

    assert 'User "stranger" cannot list resource "pods"' in stranger.stderr
    assert "Unauthorized" in expired.stderr


def test_a_quota_is_enforced(kube: Kube, kube_namespace: str) -> None:
    kube.quota(kube_namespace, pods="1")
    path = f"/api/v1/namespaces/{kube_namespace}/pods"
    kube.api.post(path, a_pod("one", "true"))

    with pytest.raises(ApiError, match="exceeded quota"):
        kube.api.post(path, a_pod("two", "true"))


def test_the_api_server_restarts_with_its_state_and_waits_continue(kube: Kube, kube_namespace: str) -> None:
    path = f"/api/v1/namespaces/{kube_namespace}/pods"
    crashes: list[str] = []

    def crash(pods: list[dict[str, Any]]) -> list[str]:
        if not crashes:
            kube.stop_api()
            with pytest.raises(TestbedError, match="cannot be reached") as error:
                kube.pods(kube_namespace)
            crashes.append(str(error.value))
            kube.start_api()
            kube.api.post(path, a_pod("two", "true"))
        return [pod["metadata"]["name"] for pod in pods] if len(pods) == 2 else []

    kube.api.post(path, a_pod("one", "true"))
    try:
        assert kube.wait_pods(kube_namespace, "two pods", crash) == ["one", "two"]
    finally:
        if not kube.is_running():
            kube.start_api()


def test_a_wait_that_fails_lists_the_pods_and_events(kube: Kube, kube_namespace: str) -> None:
    kube.api.post(f"/api/v1/namespaces/{kube_namespace}/pods", a_pod("one", "true"))
    there = r"in which nothing happened for two pods; in \S+ there is: "
    there += r"one Pending PodScheduled=False \(Unschedulable\); events: .*"

    with pytest.raises(WaitError, match=f"{there}no nodes available"):
        kube.wait_pods(kube_namespace, "two pods", lambda pods: len(pods) == 2, silent_s=5)
