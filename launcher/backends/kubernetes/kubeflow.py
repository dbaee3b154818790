"""The kinds of Kubeflow: TrainJob of Trainer; PyTorchJob, TFJob and MPIJob of the operators before it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes import pod
from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.spec import JobSpec

_LABEL = "training.kubeflow.org/"
_INDEX = f"metadata.labels['{_LABEL}replica-index']"
_KEYS = "/distlaunch/ssh"
"""Where the MPI operator mounts the keys that it creates: its default hides the /root/.ssh of the image."""

_FOR_SSH = {
    "OpenMPI": ("orte_keep_fqdn_hostnames", "orte_default_hostfile", "plm_rsh_args", "orte_set_default_slots"),
    "MPICH": ("HOST_FILE", "LAUNCH_EXTRA_ARGS"),
    "Intel": ("HYDRA_HOST_FILE", "HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "PERHOST"),
}
_PREFIXES = {"OpenMPI": "OMPI_MCA_", "MPICH": "HYDRA_", "Intel": "I_MPI_"}
"""By MPI implementation, the variables with which the MPI operator has mpirun start workers through sshd."""


def train_job(head: dict[str, Any], nodes: int, job: dict[str, Any], queued: dict[str, Any]) -> list[dict[str, Any]]:
    """The run's own runtime, as those of the cluster lack our volumes; then the TrainJob."""
    meta = head["metadata"]
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}, "spec": job}
    network = {"enableDNSHostnames": True, "subdomain": meta["name"], "publishNotReadyAddresses": True}
    job_set = {"network": network, "replicatedJobs": [{"name": "node", "replicas": 1, "template": step}]}
    runtime = {
        "apiVersion": head["apiVersion"],
        "kind": "TrainingRuntime",
        "metadata": copy.deepcopy(meta),
        "spec": {"mlPolicy": {"numNodes": nodes}, "template": {"spec": job_set}},
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": meta["name"]}
    return [runtime, {**head, "spec": {**queued, "runtimeRef": reference, "trainer": {"numNodes": nodes}}}]


def operated(
    spec: JobSpec, opts: KubernetesOptions, template: dict[str, Any], ttl_s: int, queued: dict[str, Any]
) -> dict[str, Any]:
    """The spec of a PyTorchJob, TFJob or MPIJob. None of its pods starts again, and all stay at its end.

    A `backoffLimit` would have the training operator delete all pods, with their logs, when one fails.
    """
    if spec.nodes.elastic:
        raise SpecError(f"--kind {opts.kind} has a fixed number of nodes", hint="--kind job can be elastic")
    policy: dict[str, Any] = {"cleanPodPolicy": "None", **queued}
    del template["spec"]["restartPolicy"]  # the replicas have one; operators warn of two
    if opts.kind == "mpijob":
        return _mpi_job(spec, opts, template, {**policy, "backoffLimit": 0})
    policy["ttlSecondsAfterFinished"] = ttl_s
    del template["spec"]["subdomain"]  # the operator creates a Service for each pod
    if opts.kind == "tfjob":
        return {"runPolicy": policy, "tfReplicaSpecs": _tf_replicas(spec, opts, template)}
    return {"runPolicy": policy, "pytorchReplicaSpecs": _first_and_others("Master", spec, template, template)}


def _mpi_job(
    spec: JobSpec, opts: KubernetesOptions, template: dict[str, Any], policy: dict[str, Any]
) -> dict[str, Any]:
    """The launcher is node 0, and its end is that of the MPIJob."""
    launcher, worker = copy.deepcopy(template), copy.deepcopy(template)
    arguments = launcher["spec"]["containers"][0]["args"]
    arguments[: arguments.index("--unpack")] = ["--node-rank", "0"]
    known = opts.mpi_implementation
    _without(launcher, [_PREFIXES[known] + name for name in _FOR_SSH[known]])
    _add_field(worker, "DISTLAUNCH_POD", "metadata.name")
    return {
        "runPolicy": policy,
        "runLauncherAsWorker": True,
        "slotsPerWorker": pod.workers(spec, opts),
        "mpiImplementation": known,
        "sshAuthMountPath": _KEYS,
        "mpiReplicaSpecs": _first_and_others("Launcher", spec, launcher, worker),
    }


def _tf_replicas(spec: JobSpec, opts: KubernetesOptions, template: dict[str, Any]) -> dict[str, Any]:
    """Worker 0 is node 0: by default, its success is that of the TFJob.

    The operator's TF_CONFIG has one task per pod, which is wrong for several workers.
    """
    _add_field(template, "DISTLAUNCH_REPLICA", _INDEX)
    if pod.workers(spec, opts) > 1:
        _without(template, ["TF_CONFIG"])
    return {"Worker": _replicas(spec.nodes.max, template)}


def _first_and_others(name: str, spec: JobSpec, first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    others = {"Worker": _replicas(spec.nodes.max - 1, other)} if spec.nodes.max > 1 else {}
    return {name: _replicas(1, first), **others}


def _replicas(count: int, template: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": "Never", "template": copy.deepcopy(template)}


def _add_field(template: dict[str, Any], variable: str, path: str) -> None:
    """Let the agent find a field of its pod in a variable."""
    found = {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    template["spec"]["containers"][0]["env"].append(found)


def _without(template: dict[str, Any], variables: Sequence[str]) -> None:
    """Keep from the workers what the operator adds: of two variables with one name, a container gets the last one."""
    template["spec"]["containers"][0]["args"] += ["--without", ",".join(variables)]


def node_of(labels: Mapping[str, str], name: str) -> int | None:
    """Node rank of a pod of that name, by the labels of its operator; None of other pods."""
    operator = labels.get(f"{_LABEL}operator-name")
    if operator == "mpi-operator":  # its labels number workers from 1, before version 0.7 from 0
        launches, number = labels.get(f"{_LABEL}job-role") == "launcher", name.rpartition("-worker-")[2]
        return 0 if launches else int(number) + 1 if number.isdigit() else None
    index = labels.get(f"{_LABEL}replica-index", "")
    if not index.isdigit():
        return None
    has_master = operator != "tfjob-controller"
    return int(index) + (has_master and labels.get(f"{_LABEL}replica-type") == "worker")
