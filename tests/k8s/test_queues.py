"""Queues of Kueue, of whichever version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.backends.kubernetes import queues, submission
from launcher.backends.kubernetes.pod import RUN_LABEL
from launcher.errors import BackendUnavailableError, SpecError

KUEUE = "/apis/kueue.x-k8s.io"
OPTIONS: Any = SimpleNamespace(queue="team", kind="job")
PLAN: Any = Mock()


def cluster(version: str, controller: str = "kueue.x-k8s.io/provisioning-request") -> Any:
    """It serves this version alone, and has a queue with an admission check."""
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}}
    has: dict[str, Any] = {
        KUEUE: {"versions": [{"version": version}, {"version": "v1alpha1"}]},
        f"{KUEUE}/{version}": {"resources": [{"kind": "LocalQueue"}]},
        f"{KUEUE}/{version}/namespaces/ns/localqueues/team": {
            "spec": {"clusterQueue": "all"},
            "status": {"pendingWorkloads": 3},
        },
        f"{KUEUE}/{version}/clusterqueues/all": {"spec": strategy},
        f"{KUEUE}/{version}/admissionchecks/far": {"spec": {"controllerName": controller}},
    }
    return SimpleNamespace(namespace="ns", find=has.get)


@pytest.fixture(autouse=True)
def _all_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "rights", Mock())


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_queue_is_known_in_the_version_that_the_cluster_serves(version: str) -> None:
    submission.check(cluster(version), OPTIONS, PLAN, [])

    assert queues.waiting(cluster(version), "team") == 3
    assert queues.waiting(cluster(version), "other") is None


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_queue_of_multikueue_is_refused_in_each_version(version: str) -> None:
    with pytest.raises(SpecError, match="queue team belongs to MultiKueue"):
        submission.check(cluster(version, "kueue.x-k8s.io/multikueue"), OPTIONS, PLAN, [])


def test_a_cluster_without_kueue_has_no_queue() -> None:
    with pytest.raises(BackendUnavailableError, match=r"no LocalQueue \(kueue.x-k8s.io/v1beta2 or v1beta1\)"):
        submission.check(cluster("v0"), OPTIONS, PLAN, [])


@pytest.mark.parametrize("queue", ["", "usual"])
def test_only_the_queue_that_a_cluster_adds_by_itself_resumes_a_run(
    monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """Kueue does so in namespaces with a default queue, and would stop pods that it has not admitted."""
    for name in ("check", "ttl", "output"):
        monkeypatch.setattr(submission, name, Mock())
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x-1", "labels": {RUN_LABEL: "x-1"}},
        "spec": {},
    }
    asked: list[tuple[str, bool]] = []

    def call(method: str, _path: str, body: Any, **_more: Any) -> dict[str, Any]:
        asked.append((method, body["spec"]["suspend"]))
        added = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
        return {**job, "metadata": {"name": "x-1", "labels": {RUN_LABEL: "x-1", **added}}}

    plan: Any = SimpleNamespace(objects=[job], has_key=False, secrets=(), name="x-1")
    opts: Any = SimpleNamespace(queue="", kind="job", gpus_per_node=0)
    submission.send(SimpleNamespace(namespace="ns", call=call), opts, plan, Mock())  # type: ignore[arg-type]

    assert asked == [("POST", True)] + ([] if queue else [("PATCH", False)])
    notes = [call.args[0] for call in submission.output.note.call_args_list]  # type: ignore[attr-defined]
    assert notes == (["the run is in the queue usual of Kueue, and starts once it is admitted"] if queue else [])
