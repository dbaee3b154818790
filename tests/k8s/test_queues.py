"""Queues of Kueue, of whichever version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.backends.kubernetes import queues, submission
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
