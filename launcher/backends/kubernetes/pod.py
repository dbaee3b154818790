"""The pod of one node: the same for all kinds of workloads."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.outputs.signs import GRANTED
from launcher.backends.kubernetes import words
from launcher.errors import SpecError
from launcher.payload import project

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.parts import Part
    from launcher.spec import JobSpec

RUN_LABEL = "distlaunch/run"
NODE_LABEL = "distlaunch/node"
"""Node rank on bare pods; a Job's pods have Kubernetes' own label for it."""

INPUT = "/distlaunch/input"
"""Where the agent, its spec and the archives are in the pod."""

DIRECTORY = "/distlaunch/run"
"""The run's directory in the pod: initially empty, written by the agent."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation with kubectl's default container, in case of sidecars."""

RANK_VARIABLES = {"pytorchjob": "RANK", "mpijob": "DISTLAUNCH_POD+1", "tfjob": "DISTLAUNCH_REPLICA"}
_TIMES = {
    "DISTLAUNCH_TIMES_DISRUPTED": "job-index-ignored-failure-count",
    "DISTLAUNCH_TIMES_LOST": "job-index-failure-count",
}
"""Annotations in which the Job controller counts the restarts of a node's pod: after disruptions, and after losses."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL, GROUP_COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
"""Of bare pods that Kueue admits together; the second one is an annotation."""

STARTS_AGAIN = ("job", "jobset", "trainjob")
"""Kinds whose controllers restart pods."""

_LOST = (
    "what the workers write is lost with their pods: --fetch PATTERN, or --volume pvc:CLAIM:/out --output-dir /out, "
    "keeps it"
)
_GRACE_MORE_S = 15
"""How long the agent needs, beyond its workers' grace time, to report how they exited."""

_BEACONS = (20_000, 29_000)
"""Port range of the beacons, below the ports that Kubernetes assigns to Services, and the kernel to connections."""

HOLD_S = 600.0
"""With --fetch, how long a pod waits at its end until a launcher has fetched its files."""

_LIMIT_MORE_S = 30 * 60
"""The agent enforces the time limit; the kubelet ends a pod whose agent could not, this much later.

It counts from before it pulls the image, and Kubernetes would start a pod again that it has ended.
"""


def places(spec: JobSpec, opts: KubernetesOptions, run: str) -> dict[str, Any]:
    """Where the workers start and where their files are to be, as fields of the agents' job."""
    if opts.workdir or not opts.output_dir:
        where = opts.workdir or f"{DIRECTORY}/files"
        return {"cwd": where, "output_dir": where}
    name = project.name_of(spec.cwd) if opts.project_dir else run
    where = f"{opts.output_dir.rstrip('/')}/{name}/work"
    return {"cwd": where, "output_dir": where, "project": name}


def holding(spec: JobSpec) -> dict[str, Any]:
    """Which pods wait at their end until their files are fetched, and how long, as fields of the agents' job."""
    if not spec.fetches:
        return {}
    return {"hold_s": HOLD_S, "hold_node": None if spec.fetches == "all" else int(spec.fetches)}


def claiming(spec: JobSpec) -> dict[str, Any]:
    """Where node 0 also finds the claim that a launcher grants, as fields of the agents' job."""
    claim = spec.agents.get("claim")
    return {"claim": {**claim, "kept": f"{INPUT}/{GRANTED}"}} if claim and not claim.get("place") else {}


def granted_name(name: str) -> str:
    """The ConfigMap that exists once the run has its claim, for pods that are started again."""
    return f"{name}-{GRANTED}"


def check_environment(spec: JobSpec) -> None:
    """Raise `SpecError` for a run that would bring an environment: a pod has that of its image."""
    if spec.agents.get("env_ship"):
        raise SpecError("--env-ship: pods have the environment of their image", hint="--image IMAGE")


def check_outputs(spec: JobSpec, opts: KubernetesOptions, volumes: Sequence[tuple[str, ...]]) -> None:
    """Tell the user if what the workers write is lost with their pods. `volumes`: those of each role."""
    if opts.output_dir and (opts.workdir or not opts.snapshot):
        raise SpecError(
            f"--output-dir and --{'workdir' if opts.workdir else 'no-snapshot'} exclude each other",
            hint="--workdir is where the workers start and write",
        )
    if opts.output_dir and not all(words.keeps(each, opts.output_dir) for each in volumes):
        lost = f"--output-dir {opts.output_dir}: no volume that can be written and outlives its pod is there"
        if not opts.patch:  # which may mount one
            raise SpecError(lost, hint="--volume pvc:CLAIM:/out --output-dir /out")
        output.note(lost)
    if not (opts.output_dir or opts.workdir or any(map(words.lasting, volumes)) or spec.fetches):
        output.note(_LOST)


def labels(run: str, opts: KubernetesOptions) -> dict[str, str]:
    """The labels of every object of a run."""
    own = {"app.kubernetes.io/name": "distlaunch", "app.kubernetes.io/managed-by": "distlaunch", RUN_LABEL: run}
    return {**words.pairs(opts.label, "label"), **own}


def notes(opts: KubernetesOptions) -> dict[str, str]:
    """The annotations of every object of a run."""
    return words.pairs(opts.annotation, "annotation", values_are_labels=False)


def rank_variable(kind: str) -> str:
    """The variable in which a pod finds its node rank, and what to add to the number at its end."""
    return RANK_VARIABLES.get(kind, "JOB_COMPLETION_INDEX")


def template(spec: JobSpec, part: Part, name: str, run: str, configs: list[str], *, container: str) -> dict[str, Any]:
    """The pod template of a part of the run; `configs` are the ConfigMaps with its input."""
    opts, told = part.opts, {_DEFAULT_CONTAINER: container, **notes(part.opts)}
    meta: dict[str, Any] = {"labels": {**labels(run, opts), **part.labels}, "annotations": told}
    key = key_name(name) if spec.nodes.max > 1 or spec.function or spec.agents.get("notify") else ""
    volumes, mounts = _volumes(opts, configs, key, granted_name(name) if claiming(spec) else "")
    body: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + _GRACE_MORE_S,
        "containers": [_container(spec, part, name, mounts, container)],
        "volumes": volumes,
    }
    if spec.time_limit_s is not None:
        body["activeDeadlineSeconds"] = math.ceil(spec.time_limit_s + spec.grace_s) + _LIMIT_MORE_S
        body["activeDeadlineSeconds"] += math.ceil(HOLD_S) if spec.fetches else 0
    body.update(_placement(part, run))
    body.update(_identity(opts))
    if opts.host_network:
        body.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    return {"metadata": meta, "spec": body}


def workers(spec: JobSpec, opts: KubernetesOptions) -> int:
    """The number of workers per node."""
    return max(1, opts.gpus_per_node or 0) if spec.workers_per_node == "auto" else spec.workers_per_node


def python_of(spec: JobSpec) -> str:
    """The interpreter that runs the agent."""
    return spec.python or "python3"


def _container(spec: JobSpec, part: Part, name: str, mounts: list[dict[str, Any]], container: str) -> dict[str, Any]:
    opts = part.opts
    rank = rank_variable(opts.kind) + (f"+{part.first}" if part.first else "")
    found: dict[str, Any] = {
        "name": container,
        "image": opts.image,
        "command": [python_of(spec), "-u", f"{INPUT}/agent.pyz", "--spec", f"{INPUT}/spec.json"],
        "args": ["--node-rank-from", rank, "--unpack", INPUT],
        "env": _env(spec, opts, name),
        "volumeMounts": mounts,
    }
    if opts.pull_policy:
        found["imagePullPolicy"] = opts.pull_policy
    if taken := resources(opts):
        found["resources"] = {"limits": taken, "requests": dict(taken)}
    if security := _security(opts):
        found["securityContext"] = security
    return found


def _env(spec: JobSpec, opts: KubernetesOptions, name: str) -> list[dict[str, Any]]:
    """The variables, without values: those of secrets come from Secrets, other variables are in spec.json."""
    env: list[dict[str, Any]] = [{"name": "DISTLAUNCH_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    if opts.kind in STARTS_AGAIN:
        paths = {name: f"metadata.annotations['batch.kubernetes.io/{note}']" for name, note in _TIMES.items()}
        env += [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]
    env += [{"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}} for key in spec.secrets]
    return env + words.secret_refs(opts.secret_ref)


def key_name(name: str) -> str:
    """Name of the Secret with the run's key and its function; a single node with a script needs none."""
    return f"{name}-key"


def _volumes(
    opts: KubernetesOptions, configs: list[str], key: str, granted: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts: the input, the run's directory, /dev/shm, and the user's own."""
    shm: dict[str, Any] = {"medium": "Memory"}
    if size := opts.shm or (words.half(opts.memory) if opts.memory else ""):
        shm["sizeLimit"] = size
    sources: list[dict[str, Any]] = [{"configMap": {"name": config}} for config in configs]
    sources += [{"secret": {"name": key}}] if key else []
    sources += [{"configMap": {"name": granted, "optional": True}}] if granted else []
    volumes: list[dict[str, Any]] = [
        {"name": "input", "projected": {"sources": sources}},
        {"name": "run", "emptyDir": {}},
        {"name": "shm", "emptyDir": shm},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "input", "mountPath": INPUT, "readOnly": True},
        {"name": "run", "mountPath": DIRECTORY},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - in the pod
    ]
    own, own_mounts = words.volumes(opts.volume)
    return volumes + own, mounts + own_mounts


def _placement(part: Part, run: str) -> dict[str, Any]:
    """Which hosts the pods may run on."""
    found: dict[str, Any] = {}
    opts = part.opts

    def near(option: str, label: str) -> dict[str, Any]:
        pods = {"matchLabels": {RUN_LABEL: run, **part.among(option)}}
        return {"labelSelector": pods, "topologyKey": label}

    affinity: dict[str, Any] = {}
    if opts.require_same:
        term = near("require_same", words.label_key(opts.require_same, "require-same"))
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    if opts.prefer_same:
        term = near("prefer_same", words.label_key(opts.prefer_same, "prefer-same"))
        wish = {"weight": 100, "podAffinityTerm": term}
        affinity.setdefault("podAffinity", {})["preferredDuringSchedulingIgnoredDuringExecution"] = [wish]
    if opts.exclude:  # by the name in spec.nodeName; the label kubernetes.io/hostname may differ
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in words.names(opts.exclude)]
        terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if opts.spread:
        apart = [near("spread", "kubernetes.io/hostname")]
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": apart}
    if affinity:
        found["affinity"] = affinity
    if opts.node_selector:
        found["nodeSelector"] = words.pairs(opts.node_selector, "node-selector")
    if opts.toleration:
        found["tolerations"] = words.tolerations(opts.toleration)
    if opts.priority_class:
        found["priorityClassName"] = opts.priority_class
    return found


def _identity(opts: KubernetesOptions) -> dict[str, Any]:
    """The pod's user and accounts; without a service account it gets no token, as it needs none."""
    found: dict[str, Any] = {"automountServiceAccountToken": False}
    if opts.service_account:
        found = {"serviceAccountName": opts.service_account}
    if opts.pull_secret:
        found["imagePullSecrets"] = [{"name": name} for name in opts.pull_secret]
    if opts.run_as:
        found["securityContext"] = {**words.user(opts.run_as), "seccompProfile": {"type": "RuntimeDefault"}}
    return found


def _security(opts: KubernetesOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"allowPrivilegeEscalation": False}
    capabilities: dict[str, list[str]] = {}
    if opts.run_as:
        capabilities["drop"] = ["ALL"]
    if opts.ipc_lock or any(name.startswith("rdma/") for name in opts.resource):
        capabilities["add"] = ["IPC_LOCK"]
    return {**found, "capabilities": capabilities} if capabilities else found


def resources(opts: KubernetesOptions) -> dict[str, str]:
    """The resources of one node's pod, by Kubernetes' names."""
    found = {opts.gpu_resource: str(opts.gpus_per_node)} if opts.gpus_per_node else {}
    for name in ("cpu", "memory"):
        if value := getattr(opts, name):
            found[name] = value
    return found | words.resource_pairs(opts.resource)


def beacons(run: str) -> list[int]:
    """Host ports at which node 0 may publish its rendezvous port: the same on all nodes, different between runs."""
    low, high = _BEACONS
    return [low + zlib.crc32(f"{run} {number}".encode()) % (high - low) for number in range(8)]
