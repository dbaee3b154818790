"""The controllers that a testbed may run, with the build, names and settings of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from testbed import kube_builds, kube_image
from testbed.errors import TestbedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testbed.kube_api import Object
    from testbed.kube_builds import Build

RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                            "spec": {
                                "template": {"spec": {"containers": [{"name": "node", "image": kube_image.PINNED}]}}
                            },
                        },
                    }
                ]
            }
        },
    },
}
"""Kubeflow's own `torch-distributed`, with the testbed's image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One controller's build and settings."""

    build: Build
    overlay: str
    """Its kustomization, below the directory with its program."""

    port: int = 0
    """The port of its webhooks; 0: it has none."""

    health: str = ""
    """Where it tells whether it is ready, if that cannot be chosen: port and path."""

    config: dict[str, Any] = field(default_factory=dict)
    """The contents of its `--config` file, except for ports."""

    flags: dict[str, str] = field(default_factory=dict)
    schemes: tuple[str, ...] = ()
    """The kinds that it is to serve, if it has flags for that."""

    without: tuple[str, ...] = ()
    """Kinds that are not installed, because they are large and slow."""

    objects: tuple[Object, ...] = ()
    """Objects to create once it runs."""

    started_again: bool = False
    """Whether it exits when the API server is slow, as it elects a leader in any case: a Deployment starts it again."""


KINDS = {
    "jobset": Kind(
        build=kube_builds.JOBSET,
        overlay="config/default",
        port=9441,
        config={"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": True}},
    ),
    "trainer": Kind(
        build=kube_builds.TRAINER,
        overlay="manifests/overlays/manager",
        port=9442,
        flags={"metrics-bind-address": "0"},
        objects=(RUNTIME,),
    ),
    "training-operator": Kind(
        build=kube_builds.TRAINING_OPERATOR,
        overlay="manifests/overlays/standalone",
        port=9443,
        flags={
            "metrics-bind-address": "0",
            "pytorch-init-container-image": kube_image.PINNED,
        },
        schemes=("pytorchjob", "tfjob"),
        without=tuple(f"{name}jobs.kubeflow.org" for name in ("jax", "mpi", "paddle", "xgboost")),
    ),
    "mpi-operator": Kind(
        build=kube_builds.MPI_OPERATOR,
        overlay="manifests/overlays/standalone",
        health="8080/healthz",
        flags={"kube-api-qps": "100", "kube-api-burst": "200"},
        started_again=True,
    ),
    "kueue": Kind(
        build=kube_builds.KUEUE,
        overlay="config/default",
        port=9444,
        config={
            "apiVersion": "config.kueue.x-k8s.io/v1beta1",
            "namespace": "kueue-system",
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "integrations": {
                "frameworks": [
                    "batch/job",
                    "jobset.x-k8s.io/jobset",
                    "trainer.kubeflow.org/trainjob",
                    "kubeflow.org/pytorchjob",
                    "kubeflow.org/tfjob",
                    "kubeflow.org/mpijob",
                    "pod",
                ]
            },
        },
        flags={"feature-gates": "VisibilityOnDemand=false"},
    ),
}
"""In the order in which they are installed: Trainer makes JobSets."""


def builds(names: Sequence[str]) -> list[Build]:
    """The modules of these controllers, and of those that they need."""
    return [KINDS[name].build for name in wanted(names)]


def wanted(names: Sequence[str]) -> list[str]:
    """These controllers and those that they need, in the order of `KINDS`."""
    unknown = set(names) - set(KINDS)
    if unknown:
        raise TestbedError(f"no such controller: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return [name for name in KINDS if name in names or (name == "jobset" and "trainer" in names)]
