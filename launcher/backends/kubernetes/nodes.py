"""The nodes of the cluster, with the GPUs that pods have there, and the runs of this namespace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from launcher import output
from launcher.backends.kubernetes import api, owners, words
from launcher.backends.kubernetes.pod import RUN_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.results.cluster import Lease, SurveyedHost
    from launcher.results.run import ClusterRun

T = TypeVar("T")

_HARD = ("NoSchedule", "NoExecute")

_LIVE = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="}


def found(cluster: Cluster, opts: KubernetesOptions) -> list[SurveyedHost]:
    """All nodes, or if this user may not list them those of the namespace's runs."""
    runs = owners.runs(cluster)
    resource = opts.gpu_resource
    own = f"/api/v1/namespaces/{cluster.namespace}/pods"
    try:
        leases = _leases(runs, api.collect(cluster, own, {**_LIVE, "labelSelector": RUN_LABEL}, _run)[0])
        nodes = _allowed(cluster, "/api/v1/nodes", {}, lambda item: _node(item, opts))
        pods = None if nodes is None else _allowed(cluster, "/api/v1/pods", _LIVE, lambda item: _gpus(item, resource))
    except (api.ApiError, api.UnreachableError) as error:
        raise api.explained(error, cluster, "to list the hosts") from error
    if nodes is None:
        output.warn(
            "you may not list the cluster's nodes (`kubectl auth can-i list nodes`), so only those with runs of "
            f"namespace {cluster.namespace!r} are shown"
        )
        nodes = [_host(name, "unknown", None, None, None) for name in sorted(leases)]
    used: Counter[str] = Counter()
    for name, count in pods or ():
        used[name] += count
    for host in nodes:
        host["leases"] = leases.get(host["host"], [])
        host["gpus_used"] = used[host["host"]] if pods is not None else None
    return nodes


def _allowed(cluster: Cluster, path: str, query: dict[str, str], take: Callable[[dict[str, Any]], T]) -> list[T] | None:
    """The collection; None if this user may not list it."""
    try:
        return api.collect(cluster, path, query, take)[0]
    except api.ApiError as error:
        if error.status != 403:
            raise
        return None


def _leases(runs: Iterable[ClusterRun], pods: Iterable[tuple[str, str]]) -> dict[str, list[Lease]]:
    """The runs that have pods, by node."""
    users = {run["run"]: run["user"] for run in runs}
    found: dict[str, list[Lease]] = {}
    for host, run in dict.fromkeys(pods):
        if run in users:
            found.setdefault(host, []).append({"run": run, "user": users[run], "since": None, "gpus": None})
    return found


def _run(item: dict[str, Any]) -> tuple[str, str]:
    """A pod's node and run."""
    return item["spec"].get("nodeName") or "", str(item["metadata"]["labels"][RUN_LABEL])


def _gpus(item: dict[str, Any], resource: str) -> tuple[str, int]:
    """A pod's node, and its GPUs there."""
    return item["spec"].get("nodeName") or "", int(requests(item["spec"]).get(resource, 0.0))


def requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """What a pod requests, as the scheduler counts it.

    That is what its containers and sidecars do together; an init container, with the sidecars before it, only if that
    is more; and the overhead of its runtime.
    """
    first, beside = Counter[str](), Counter[str]()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            beside += _amounts(container)
            first |= beside
        else:
            first |= beside + _amounts(container)
    together = sum(map(_amounts, spec.get("containers") or ()), beside)
    return {"pods": 1.0, **((together | first) + _quantities(spec.get("overhead")))}


def _amounts(container: Mapping[str, Any]) -> Counter[str]:
    return _quantities((container.get("resources") or {}).get("requests"))


def _quantities(given: Mapping[str, Any] | None) -> Counter[str]:
    return Counter({name: words.amount(value) for name, value in (given or {}).items()})


def taints(item: Mapping[str, Any]) -> list[dict[str, str]]:
    """A node's taints that keep pods out."""
    return [taint for taint in (item.get("spec") or {}).get("taints") or () if taint.get("effect") in _HARD]


def not_tolerated(found: Iterable[Mapping[str, str]], opts: KubernetesOptions) -> list[Mapping[str, str]]:
    """Those of these taints that keep the pods of a run with these options out."""
    tolerated = [{"key": opts.gpu_resource}, *words.tolerations(opts.toleration)]  # clusters add the first one
    return [taint for taint in found if not any(_tolerates(each, taint) for each in tolerated)]


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    return (
        toleration["key"] == taint["key"]
        and toleration.get("value", taint.get("value", "")) == taint.get("value", "")
        and toleration.get("effect", taint["effect"]) == taint["effect"]
    )


def _node(item: dict[str, Any], opts: KubernetesOptions) -> SurveyedHost:
    status, name = item.get("status") or {}, str(item["metadata"]["name"])
    ready: dict[str, Any] = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), {})
    state = {"True": "ready", "False": "not ready"}.get(str(ready.get("status")), "unknown")
    why = None if state == "ready" else str(ready.get("message") or ready.get("reason") or "it reports nothing")
    if (item.get("spec") or {}).get("unschedulable"):
        state, why = f"{state}, cordoned", why or "cordoned: it takes no more pods"
    elif state == "ready" and (kept_out := not_tolerated(taints(item), opts)):
        state, why = "ready, tainted", f"tainted {kept_out[0]['key']}: only for pods that tolerate it (--toleration)"
    room = status.get("allocatable") or {}
    return _host(
        name, state, why, int(words.amount(room.get("cpu") or "0")), int(words.amount(room.get(opts.gpu_resource, "0")))
    )


def _host(name: str, state: str, problem: str | None, cpus: int | None, gpus: int | None) -> SurveyedHost:
    return {
        "host": name,
        "state": state,
        "problem": problem,
        "load": None,
        "cpus": cpus,
        "gpus": [],
        "gpus_total": gpus,
        "gpus_used": None,
        "leases": [],
        "waiting": [],
        "quarantine": None,
        "doctor": None,
    }
