"""What the operators of Kubeflow tell about their pods and jobs. For real ones see `test_kinds.py`."""

from __future__ import annotations

import pytest

from launcher.backends.kubernetes.kubeflow import node_of
from launcher.backends.kubernetes.states import is_suspended

L = "training.kubeflow.org/"


@pytest.mark.parametrize(
    ("operator", "labels", "name", "node"),
    [
        ("pytorchjob-controller", {"replica-type": "master", "replica-index": "0"}, "x-master-0", 0),
        ("pytorchjob-controller", {"replica-type": "worker", "replica-index": "1"}, "x-worker-1", 2),
        ("tfjob-controller", {"replica-type": "worker", "replica-index": "1"}, "x-worker-1", 1),
        ("mpi-operator", {"job-role": "launcher"}, "x-launcher-abcde", 0),
        ("mpi-operator", {"job-role": "launcher", "replica-index": "0"}, "x-launcher-abcde", 0),
        ("mpi-operator", {"job-role": "worker", "replica-index": "1"}, "x-worker-1-worker-1", 2),
        ("mpi-operator", {"job-role": "worker", "replica-index": "2"}, "x-worker-1", 2),
        ("mpi-operator", {"job-role": "worker"}, "x", None),
        ("", {}, "x-worker-1", None),
    ],
)
def test_the_node_of_an_operators_pod_is_known_whatever_its_version(
    operator: str, labels: dict[str, str], name: str, node: int | None
) -> None:
    """The MPI operator labels workers from 0 up to version 0.6, and the launcher not at all."""
    told = {L + key: value for key, value in {"operator-name": operator, **labels}.items()}

    assert node_of(told, name) == node


def test_a_suspended_workload_is_known_by_its_run_policy_or_its_own_field() -> None:
    assert is_suspended({"spec": {"suspend": True}})
    assert is_suspended({"spec": {"runPolicy": {"suspend": True}}})
    assert not is_suspended({"spec": {"runPolicy": {"suspend": False}}})
    assert not is_suspended({"spec": {"runPolicy": {"cleanPodPolicy": "None"}}})
    assert not is_suspended(None)
