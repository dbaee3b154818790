"""The objects of a run, by kind: what is created, in which order, and how its pods are found."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from launcher.agent.secret_files import KEY_FILE
from launcher.backends._writing import secret_texts
from launcher.backends.kubernetes import indexed, kubeflow, parts, pod
from launcher.errors import SpecError
from launcher.spec import parse_duration
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.agent.job import Job
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.spec import JobSpec

Manifest = dict[str, Any]

_FUNCTION_BYTES = 1_000_000
_BATCH = "/apis/batch/v1/namespaces/{}/jobs"


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of object is named, and what differs for its pods."""

    api_version: str
    kind: str
    path: str
    """The path of its collection, with `{}` for the namespace."""

    container: str = "node"
    longest: int = 63
    """Longest name that leaves room for the names of its pods; JobSet counts their random suffix, too."""

    master: str = "{0}-0.{0}"
    """DNS name of the first node's pod."""

    maker: str = "{0}"
    """The object whose controller creates the pods, with the events of those that it cannot create."""

    has_service: bool = False
    """Whether its controller creates the headless Service."""

    replicas: str = ""
    """The field with the pod templates of an operator's job, which also has a run policy."""


KINDS: Mapping[str, Kind] = {
    "job": Kind("batch/v1", "Job", _BATCH, longest=57),
    "jobset": Kind(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
        longest=47,
        master="{0}-n-0-0.{0}",
        maker="{0}-n-0",
        has_service=True,
    ),
    "trainjob": Kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
        longest=44,
        master="{0}-node-0-0.{0}",
        maker="{0}-node-0",
        has_service=True,
    ),
    "pytorchjob": Kind(
        "kubeflow.org/v1",
        "PyTorchJob",
        "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
        container="pytorch",
        longest=50,
        master="{0}-master-0",
        has_service=True,
        replicas="pytorchReplicaSpecs",
    ),
    "mpijob": Kind(
        "kubeflow.org/v2beta1",
        "MPIJob",
        "/apis/kubeflow.org/v2beta1/namespaces/{}/mpijobs",
        longest=50,
        master="{0}-launcher.{0}",
        maker="{0}-launcher",
        has_service=True,
        replicas="mpiReplicaSpecs",
    ),
    "tfjob": Kind(
        "kubeflow.org/v1",
        "TFJob",
        "/apis/kubeflow.org/v1/namespaces/{}/tfjobs",
        container="tensorflow",
        longest=50,
        master="{0}-worker-0",
        has_service=True,
        replicas="tfReplicaSpecs",
    ),
    "pods": Kind("v1", "ConfigMap", "/api/v1/namespaces/{}/configmaps", longest=57),
}
"""By the value of `--kind`. For bare pods, the ConfigMap owns everything else."""

UNTIMED = ("trainjob", "mpijob", "pods")
TTL_NOTE = "distlaunch/ttl-seconds"
"""Kinds that no controller removes after their time to live, and their annotation with that time."""

RUNTIME_PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainingruntimes"
_PATHS = {
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "/api/v1/namespaces/{}/pods",
    "TrainingRuntime": RUNTIME_PATH,
}


def path_of(manifest: Manifest, namespace: str) -> str:
    """The collection that a manifest is posted to."""
    kind = manifest["kind"]
    path = _PATHS.get(kind) or next(item.path for item in KINDS.values() if item.kind == kind)
    return path.format(namespace)


def makers(kind: str, name: str, roles: Iterable[str]) -> list[str]:
    """The names of the objects whose controllers create the pods, by role."""
    return parts.makers(kind, name, list(roles), alone=KINDS[kind].maker.format(name))


def master(kind: str, name: str, roles: Sequence[str]) -> str:
    """The DNS name of node 0's pod."""
    return parts.first_pod(kind, name, roles, alone=KINDS[kind].master.format(name))


def name_of(run: str, kind: str, roles: Sequence[str] = ()) -> str:
    """The object's name: the run's id, its name part cut to leave room for the names of the kind's pods."""
    longest = parts.longest(kind, roles, alone=KINDS[kind].longest)
    if len(run) <= longest:
        return run
    head, tail = run[:-21], run[-21:]  # -YYYYMMDD-HHMMSS-xxxx
    return head[: longest - len(tail)].rstrip("-") + tail


def headless_service(name: str, run: str, opts: KubernetesOptions) -> Manifest:
    """Gives the pods DNS names even before they are ready."""
    selector = {pod.RUN_LABEL: run}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(name, run, opts), "spec": spec}


def network_policy(name: str, run: str, opts: KubernetesOptions) -> Manifest:
    """Lets only the run's own pods reach its ports; outgoing connections are not restricted."""
    own = {"matchLabels": {pod.RUN_LABEL: run}}
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(name, run, opts),
        "spec": spec,
    }


def key_secret(name: str, run: str, opts: KubernetesOptions, key: str, job: Job) -> Manifest:
    """A Secret, as more users can read ConfigMaps: the run's key, the function, whom to tell.

    Raises `SpecError` if the function is too large.
    """
    function = job.function
    if function and len(function) > _FUNCTION_BYTES:
        raise SpecError(
            f"the function and its arguments have {len(function) / 1e6:.1f} MB, "
            f"and at most {_FUNCTION_BYTES / 1e6:.0f} MB fit into a Secret",
            hint="have the function read what is large from a file in the working directory, or from a volume",
        )
    return secret(pod.key_name(name), run, opts, {"stringData": {KEY_FILE: key, **secret_texts(job)}})


def secret(name: str, run: str, opts: KubernetesOptions, content: Mapping[str, Any]) -> Manifest:
    """An immutable Secret."""
    head = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": True}
    return {**head, "metadata": _meta(name, run, opts), **content}


def config_map(name: str, run: str, opts: KubernetesOptions, content: Mapping[str, Any]) -> Manifest:
    """An immutable ConfigMap, which no kubelet watches."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(name, run, opts), "immutable": True, **content}


def workload(spec: JobSpec, opts: KubernetesOptions, name: str, run: str, configs: list[str]) -> list[Manifest]:
    """The objects that create pods; the last one owns everything, unless the last ones are the pods themselves."""
    kind, ttl_s = KINDS[opts.kind], int(parse_duration(opts.ttl, "ttl"))
    of_run = parts.of(spec, opts)
    templates = [pod.template(spec, part, name, run, configs, container=kind.container) for part in of_run]
    meta = _meta(name, run, opts)
    if opts.queue:
        meta["labels"][pod.QUEUE_LABEL] = opts.queue
    head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
    if opts.kind == "pods":
        return _bare_pods(spec, opts, name, templates[0])
    queued = {"suspend": True} if opts.queue else {}
    if kind.replicas:
        return [{**head, "spec": kubeflow.operated(spec, opts, templates[0], ttl_s, queued)}]
    jobs = [
        indexed.spec(part.nodes, template, opts.max_requeues, kind.container)
        for part, template in zip(of_run, templates, strict=True)
    ]
    timed = {**queued, "ttlSecondsAfterFinished": ttl_s}
    if opts.kind == "job":
        return indexed.jobs(head, of_run, makers("job", name, [role.name for role in spec.roles]), timed, jobs)
    if opts.kind == "jobset":
        return [{**head, "spec": {**timed, **indexed.job_set(name, of_run, jobs)}}]
    return kubeflow.train_job(head, spec.nodes.max, jobs[0], queued)


def owned(manifest: Manifest, owner: Manifest) -> Manifest:
    """The manifest with its owner, whose deletion also deletes it."""
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "ownerReferences": [{**reference, "blockOwnerDeletion": False}]},
    }


def _meta(name: str, run: str, opts: KubernetesOptions) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "labels": pod.labels(run, opts)}
    if opts.namespace:
        meta["namespace"] = opts.namespace
    told = pod.notes(opts)
    if opts.kind in UNTIMED:
        told[TTL_NOTE] = str(int(parse_duration(opts.ttl, "ttl")))
    if told:
        meta["annotations"] = told
    return meta


def _bare_pods(spec: JobSpec, opts: KubernetesOptions, name: str, template: Manifest) -> list[Manifest]:
    """One pod per node, each with its rank in a variable; no controller restarts them."""
    pods = []
    for rank in range(spec.nodes.max):
        found = copy.deepcopy(template)
        meta = found["metadata"]
        meta["name"] = f"{name}-{rank}"
        meta["labels"][pod.NODE_LABEL] = str(rank)
        if opts.namespace:
            meta["namespace"] = opts.namespace
        if opts.queue:
            meta["labels"].update({pod.QUEUE_LABEL: opts.queue, pod.GROUP_LABEL: name})
            meta.setdefault("annotations", {})[pod.GROUP_COUNT] = str(spec.nodes.max)
        found["spec"]["hostname"] = meta["name"]
        found["spec"]["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(rank)})
        pods.append({"apiVersion": "v1", "kind": "Pod", **found})
    return pods
