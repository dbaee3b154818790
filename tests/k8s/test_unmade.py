"""Pods that are not there: Kubernetes was refused to create them, or has removed them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes.watch import RunWatch
from tests.k8s.kubelet import handle

if TYPE_CHECKING:
    from pathlib import Path

NOW = time.time()
TIMEOUT_S = 120.0


def ago(seconds: float) -> str:
    """A time of the cluster."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - seconds))


class Api:
    """Has a Job that runs for an hour, its pods, and a refusal of 20 minutes ago."""

    namespace, context, tunnel, access = "ns", "", None, None

    def __init__(self) -> None:
        self.warned = set[str]()
        self.pods: list[dict[str, Any]] = []
        self.job: dict[str, Any] = {"metadata": {"name": "x-1", "uid": "u"}, "spec": {}, "status": {}}
        self.deleted: list[str] = []

    def now(self) -> float:
        return time.time()

    def find(self, _path: str) -> dict[str, Any]:
        return self.job

    def call(self, method: str, path: str, *_: Any, **_more: Any) -> dict[str, Any]:
        if method == "DELETE":
            self.deleted.append(path)
        refused = {"reason": "FailedCreate", "type": "Warning", "message": "failed calling webhook: refused"}
        event = {**refused, "firstTimestamp": ago(1200), "lastTimestamp": ago(1199)}
        return {"items": [event] if path.endswith("events") else self.pods, "metadata": {}}


def a_pod() -> dict[str, Any]:
    """One that was made after the refusal."""
    labels = {"batch.kubernetes.io/job-completion-index": "0"}
    meta = {"name": "p", "uid": "p", "creationTimestamp": ago(1190), "labels": labels}
    return {"metadata": meta, "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def watch(tmp_path: Path, api: Api) -> RunWatch:
    """Of that run, with one node."""
    where = {"run": "x-1", "name": "x-1", "uid": "u", "context": "", "kubeconfig": "", "namespace": "ns"}
    found = RunWatch(handle(tmp_path, 1) | where)
    found.__dict__["cluster"] = api
    return found


def test_a_refusal_that_lasts_ends_the_run(api: Api, watch: RunWatch) -> None:
    assert "failed calling webhook" in watch.liveness(TIMEOUT_S).detail
    assert len(api.deleted) == 1


def test_a_run_that_was_suspended_again_waits_whatever_was_refused_before(api: Api, watch: RunWatch) -> None:
    """As when Kueue preempts it: its pods are deleted, and events are kept for an hour."""
    api.job["spec"]["suspend"] = True
    assert watch.liveness(TIMEOUT_S).detail == "1 of 1 pods are not created yet: it waits to be admitted"

    api.job["spec"]["suspend"] = False
    api.job["status"]["conditions"] = [{"type": "Suspended", "status": "False", "lastTransitionTime": ago(1)}]
    watch.liveness(TIMEOUT_S)

    assert api.deleted == []


def test_a_refusal_before_pods_that_are_gone_does_not_end_the_run(api: Api, watch: RunWatch) -> None:
    api.pods = [a_pod()]
    watch.liveness(TIMEOUT_S)
    api.pods = []
    watch.liveness(TIMEOUT_S)

    assert api.deleted == []
