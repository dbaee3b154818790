"""Reads back what another launcher has sent: a run's objects as they are in the cluster, without what it has added."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.backends.kubernetes import about, objects, others, suspension
from launcher.backends.kubernetes.pod import GROUP_COUNT, GROUP_LABEL, QUEUE_LABEL
from launcher.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.kept import Kept
    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.pod_status import Object

_CONFIG_MAPS = "/api/v1/namespaces/{}/configmaps"
_BESIDE = {
    "Service": ("v1", "/api/v1/namespaces/{}/services"),
    "NetworkPolicy": ("networking.k8s.io/v1", "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"),
}
_KUEUE = "kueue.x-k8s.io/"
_OURS = (QUEUE_LABEL, GROUP_LABEL, GROUP_COUNT)


def read(cluster: Cluster, handle: KubernetesHandle, owner: Object, pods: Sequence[Object]) -> Kept:
    """The run's objects, in the order of their creation. Raises `ApiError`, `RequestError`."""
    kind = objects.KINDS[handle["kind"]]
    main = _fresh({**owner, "apiVersion": kind.api_version, "kind": kind.kind})
    if QUEUE_LABEL in main["metadata"].get("labels", {}):  # for Kueue to admit
        main = suspension.suspended(main) or main
    made: list[Manifest] = []
    if handle["kind"] == "pods":
        own = {}
        for item in pods:
            own[item["metadata"]["name"]] = _fresh({**item, "apiVersion": "v1", "kind": "Pod"})
        if len(own) != handle["nodes"]:
            raise RequestError(
                f"{len(own)} of {handle['nodes']} pods of {handle['run']} are still in the cluster",
                hint="distlaunch requeue RUN where it was started",
            )
        made = list(own.values())
        template = made[0]
    elif handle["kind"] == "trainjob":
        path = f"{objects.RUNTIME_PATH.format(cluster.namespace)}/{handle['name']}"
        runtime = {**cluster.call("GET", path), "apiVersion": kind.api_version, "kind": "TrainingRuntime"}
        made = [_fresh(runtime), main]
        template = _template("trainjob", made[0])
    else:
        found = (cluster.call("GET", others.path_of(cluster, name)) for name in others.names(handle))
        made = [*(_fresh({**item, "apiVersion": kind.api_version, "kind": kind.kind}) for item in found), main]
        template = _template(handle["kind"], main)
    if QUEUE_LABEL in main["metadata"].get("labels", {}) and handle["kind"] != "trainjob":
        _warn_of_choice(handle["run"], template)
    beside = list(_beside(cluster, handle["name"], template, has_service=kind.has_service))
    _check(beside, handle)
    if handle["kind"] == "pods":  # the ConfigMap that owns them is the first one
        beside = [main, *(item for item in beside if item["metadata"]["name"] != handle["name"] or not _is_map(item))]
    return {
        "objects": [*beside, *made],
        "secrets": _secrets(about.inputs_of(handle["name"], about.attempt_of(owner)), template),
        "function": None,
        "notify": None,
    }


def _template(kind: str, item: Manifest) -> Manifest:
    """The pod template of a workload or a runtime."""
    spec = item["spec"]
    if field := objects.KINDS[kind].replicas:
        return dict(next(iter(spec[field].values()))["template"])
    if kind == "trainjob":
        spec = spec["template"]["spec"]
    if kind != "job":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return dict(spec["template"])


def _beside(cluster: Cluster, name: str, template: Manifest, *, has_service: bool) -> Iterable[Manifest]:
    """The ConfigMaps that its pods mount, the Service and the NetworkPolicy."""
    volumes = template["spec"].get("volumes") or ()
    sources: list[dict[str, Any]] = next(
        (item["projected"]["sources"] for item in volumes if item["name"] == "input"), []
    )
    for source in sources:
        if "configMap" in source and not source["configMap"].get("optional"):
            path = f"{_CONFIG_MAPS.format(cluster.namespace)}/{source['configMap']['name']}"
            yield _fresh({**cluster.call("GET", path), "apiVersion": "v1", "kind": "ConfigMap"})
    for kind, (version, path) in _BESIDE.items():
        if kind == "Service" and has_service:
            continue
        if (found := cluster.find(f"{path.format(cluster.namespace)}/{name}")) is not None:
            yield _fresh({**found, "apiVersion": version, "kind": kind})


def _check(made: Sequence[Manifest], handle: KubernetesHandle) -> None:
    """Raise `RequestError` for a run that only its launcher can start again."""
    texts = [item["data"]["spec.json"] for item in made if "spec.json" in (item.get("data") or {})]
    if not texts:
        raise RequestError(f"the ConfigMaps of {handle['run']} have no spec.json", hint="launch it again")
    if json.loads(texts[0]).get("kind") == "function":
        raise RequestError(
            f"{handle['run']} calls a function, which only its own launcher has",
            hint="distlaunch requeue RUN where it was started",
        )


def _secrets(name: str, template: Manifest) -> list[str]:
    """The variables whose values are in the run's own Secret."""
    container = template["spec"]["containers"][0]
    refs = ((each["name"], (each.get("valueFrom") or {}).get("secretKeyRef")) for each in container.get("env") or ())
    return [variable for variable, ref in refs if ref and ref.get("name") == name]


def _is_map(item: Manifest) -> bool:
    return bool(item["kind"] == "ConfigMap")


def _fresh(item: Object) -> Manifest:
    """The object as it may have been sent: without its status, its identity, and what controllers have added."""
    meta = item["metadata"]
    found = {key: copy.deepcopy(value) for key, value in item.items() if key not in ("metadata", "status")}
    found["metadata"] = {"name": meta["name"], **_words(meta)}
    spec = found.get("spec") or {}
    if item["kind"] == "Job":
        spec.pop("selector", None)
        spec.pop("manualSelector", None)
        template = spec["template"]
        template["metadata"] = _words(template["metadata"])
    if item["kind"] == "Pod":
        for name in ("nodeName", "schedulingGates"):
            spec.pop(name, None)
    else:
        _drop_gates(spec)
    for policy in (spec, spec.get("runPolicy") or {}):
        policy.pop("suspend", None)
    return found


def _drop_gates(value: Any) -> None:
    """Remove the gates from pod templates with which Kueue keeps their pods back: it adds them itself."""
    if isinstance(value, dict) and "schedulingGates" in value:
        gates = [gate for gate in value["schedulingGates"] if not gate["name"].startswith(_KUEUE)]
        value.pop("schedulingGates")
        value |= {"schedulingGates": gates} if gates else {}
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _drop_gates(each)


def _warn_of_choice(run: str, template: Manifest) -> None:
    """Kueue adds the node selector of what it has chosen to a template, and leaves it there at the end of a run."""
    if chosen := template["spec"].get("nodeSelector"):
        words = ", ".join(f"{name}={value}" for name, value in chosen.items())
        output.warn(
            f"{run} keeps the node selector that it had, of which Kueue may have added a part: {words} "
            f"(`distlaunch requeue {run}` where it was started leaves the choice to Kueue)"
        )


def _words(meta: Object) -> dict[str, Any]:
    """The labels and annotations that we or the user have set."""
    found = {}
    for kind in ("labels", "annotations"):
        if words := meta.get(kind):
            found[kind] = {
                name: text for name, text in words.items() if name in _OURS or not name.startswith(about.ADDED)
            }
    return found
