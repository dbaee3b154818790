"""The runs in a namespace, of all kinds and all users, by the label of the objects that own them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import Failure
from launcher.agent.named_tuple import NamedTuple
from launcher.backends.kubernetes import about, api, objects, pod_status, states
from launcher.backends.kubernetes.parts import FIRST_LABEL
from launcher.backends.kubernetes.pod import RUN_LABEL, STARTS_AGAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes.about import About
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.pod_status import Object, Pod
    from launcher.results.run import ClusterRun, State

DOING = "to list runs"
_SELECTOR = {"labelSelector": RUN_LABEL}
_OURS = frozenset(kind.kind for kind in objects.KINDS.values())
"""Kinds of objects that own those of a run, or whose controllers make others of these kinds."""

_SUCCESS, _TIMEOUT = 0, 124
"""Exit codes of agents."""


class Owner(NamedTuple):
    """The object that owns the others of a run."""

    kind: str
    """The value of `--kind`."""

    item: Object
    about: About | None
    """What it says about the run; None of an earlier version, or if that is wrong."""

    wrong: str = ""
    """What is wrong with that, if so."""

    @property
    def run(self) -> str:
        """The run's id."""
        return str(self.item["metadata"]["labels"][RUN_LABEL])

    @property
    def name(self) -> str:
        """The name of the run's objects."""
        return str(self.item["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The uid that deletes only this object, not a later one of its name."""
        return str(self.item["metadata"]["uid"])

    @property
    def created(self) -> float:
        """Unix seconds."""
        return pod_status.timestamp(self.item["metadata"]["creationTimestamp"])


def found(cluster: Cluster) -> list[Owner]:
    """The owners of all runs, the oldest first: one list for each kind that the cluster has.

    Kinds that cannot be listed are reported once. Raises `LaunchError` if nothing can be listed.
    """
    owners: list[Owner] = []
    refused: dict[str, api.ApiError] = {}
    try:
        groups = _groups(cluster)
        kinds = [kind for kind, about_it in objects.KINDS.items() if _has(groups, about_it.api_version)]
        for kind in kinds:
            try:
                owners += _listed(cluster, kind)
            except api.ApiError as error:
                if error.status == 403 or error.status >= 500:  # webhooks that convert a kind may be away
                    refused[kind] = error
                elif error.status != 404:  # without its kind's definition, there are none
                    raise
        if refused and len(refused) == len(kinds):
            raise next(iter(refused.values()))
    except (api.ApiError, api.UnreachableError) as error:
        raise api.explained(error, cluster, DOING) from error
    for status in dict.fromkeys(error.status for error in refused.values()):
        alike = {kind: error for kind, error in refused.items() if error.status == status}
        why = api.explained(next(iter(alike.values())), cluster, DOING).message
        output.warn(f"runs of --kind {', '.join(alike)} are not listed: {why}")
    return sorted(owners, key=lambda owner: owner.created)


def runs(cluster: Cluster) -> list[ClusterRun]:
    """All runs in the namespace, the oldest first. Their states are those of their pods, from one list."""
    owners = found(cluster)
    pods = _pods(cluster, {owner.run: objects.KINDS[owner.kind].container for owner in owners}) if owners else {}
    return [_row(owner, None if pods is None else pods.get(owner.run, [])) for owner in owners]


def _groups(cluster: Cluster) -> set[str] | None:
    """The API groups of the cluster; None if they are unknown."""
    try:
        return {item["name"] for item in cluster.call("GET", "/apis")["groups"]}
    except api.ApiError as error:
        if error.status != 403:
            raise
        return None


def _has(groups: set[str] | None, version: str) -> bool:
    group, slash, _ = version.partition("/")
    return groups is None or not slash or group in groups


def _listed(cluster: Cluster, kind: str) -> list[Owner]:
    accept = api.METADATA if kind == "pods" else ""  # ConfigMaps without their data, which may be 24 MB per run
    path = objects.KINDS[kind].path.format(cluster.namespace)
    listed, _ = api.collect(cluster, path, _SELECTOR, lambda item: _owner(kind, item), accept=accept)
    return [owner for owner in listed if owner is not None]


def _owner(kind: str, item: Object) -> Owner | None:
    """The object as the owner of a run, if it is one."""
    meta = item["metadata"]
    beside = meta["labels"].get(FIRST_LABEL, "0") != "0"  # the Job of another role than the first one
    if beside or _OURS.intersection(owner["kind"] for owner in meta.get("ownerReferences") or ()):
        return None
    try:
        told, wrong = about.read(item), ""
    except ValueError as error:
        told, wrong = None, str(error)
    if kind == "pods" and not (told["kind"] == kind if told else wrong or _is_bare(meta)):
        return None
    return Owner(kind, item, told, wrong)


def _is_bare(meta: Object) -> bool:
    """Whether a ConfigMap of an earlier version owns bare pods: the others have owners, but for those of kubectl."""
    return objects.TTL_NOTE in (meta.get("annotations") or {}) and not meta["name"].rpartition("-files-")[0]


def _pods(cluster: Cluster, containers: dict[str, str]) -> dict[str, list[Pod]] | None:
    """The pods of all runs; None without the right to list them, which is reported."""

    def take(item: Object) -> tuple[str, Pod | None]:
        run = item["metadata"]["labels"][RUN_LABEL]
        return run, pod_status.pod_of(item, containers[run], cluster.access) if run in containers else None

    try:
        listed, _ = api.collect(cluster, f"/api/v1/namespaces/{cluster.namespace}/pods", _SELECTOR, take)
    except api.ApiError as error:
        if error.status != 403:
            raise api.explained(error, cluster, DOING) from error
        why = api.explained(error, cluster, DOING).message
        output.warn(f"hosts are not known, and states are those of the runs' owners: {why}")
        return None
    except api.UnreachableError as error:
        raise api.explained(error, cluster, DOING) from error
    pods: dict[str, list[Pod]] = {}
    for run, pod in listed:
        if pod is not None:
            pods.setdefault(run, []).append(pod)
    return pods


def _row(owner: Owner, pods: Sequence[Pod] | None) -> ClusterRun:
    told = owner.about
    count = told["nodes"] if told else max(_count(owner), *(pod.node + 1 for pod in pods or ()), 0)
    nodes = [known[-1] if known else None for known in pod_status.by_node(pods or (), count)]
    hosts = [pod.host if pod else "" for pod in nodes]
    elastic = told is not None and told["min_nodes"] < count
    return {
        "run": owner.run,
        "state": _state(owner, nodes, known=pods is not None),
        "nodes": f"{told['min_nodes']}:{count}" if told and elastic else str(count or ""),
        "created": owner.created,
        "user": told["user"] if told else None,
        "job_id": owner.name,
        "hosts": hosts if any(hosts) else [],
        "command": told["command"] if told else [],
    }


def _count(owner: Owner) -> int:
    """The number of nodes by the object itself; 0 if it does not say."""
    spec = owner.item.get("spec") or {}
    try:
        if owner.kind == "jobset":
            spec = spec["replicatedJobs"][0]["template"]["spec"]
        if field := objects.KINDS[owner.kind].replicas:
            return sum(int(item["replicas"]) for item in spec[field].values())
        return int(spec["trainer"]["numNodes"] if owner.kind == "trainjob" else spec["completions"])
    except (KeyError, IndexError, TypeError, ValueError):
        return 0


def _state(owner: Owner, nodes: Sequence[Pod | None], *, known: bool) -> State:
    """The state of a run by its owner, else by the newest pod of each node; `known`: whether pods could be listed."""
    if states.finished(owner.item) is not None:
        return "success" if states.succeeded(owner.item) else _failed(nodes)
    if "deletionTimestamp" in owner.item["metadata"]:
        return "stopping"
    if not known:
        active = (owner.item.get("status") or {}).get("active")
        return "unknown" if owner.kind == "pods" else "running" if active else "pending"
    if any(pod is not None and not pod.ended and pod.has_log for pod in nodes):
        return "running"
    if owner.kind in STARTS_AGAIN or not nodes or not all(pod is not None and pod.ended for pod in nodes):
        return "pending"
    # Node 0 ends last, and with 0 only if all have succeeded.
    return "success" if _exit_code(nodes[0]) == _SUCCESS else _failed(nodes)


def _failed(nodes: Sequence[Pod | None]) -> State:
    return Failure.TIMEOUT if _TIMEOUT in map(_exit_code, nodes) else "failed"


def _exit_code(pod: Pod | None) -> int | None:
    return (pod.terminated or {}).get("exitCode") if pod is not None else None
