"""How much of a Kubernetes cluster is free, as far as the user may see that, and whether a job fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.backends._outlook import Outlook, by_free, nothing, unknown
from launcher.backends.kubernetes import api, parts, pod, queues, words
from launcher.backends.kubernetes.nodes import not_tolerated, requests, taints
from launcher.backends.kubernetes.pod import RUN_LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.parts import Part
    from launcher.results.cluster import Capacity, ExpectedStart
    from launcher.spec import JobSpec

_DOING = "to see what is free"
_ACTIVE = "status.phase!=Succeeded,status.phase!=Failed"
_TINY = 1e-6
"""Sums of fractions of a CPU are not exact."""

_EVERYWHERE = ("DaemonSet", "Node")
"""Owners of pods that a node always has."""


class _Node:
    """A node that takes new pods, and what its pods leave of its resources."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        self.name = str(item["metadata"]["name"])
        self.labels: Mapping[str, str] = item["metadata"].get("labels") or {}
        self.taints = taints(item)
        self.has = {name: words.amount(value) for name, value in (item["status"].get("allocatable") or {}).items()}
        self.left = dict(self.has)
        self.used = False

    def take(self, requests: Mapping[str, float]) -> None:
        """Subtract what a pod requests."""
        for name, value in requests.items():
            self.left[name] = self.left.get(name, 0.0) - value

    def fits(self, wanted: Mapping[str, float], most: int) -> int:
        """How many pods with these requests fit, at most so many."""
        counts = [(self.left.get(name, 0.0) + _TINY) // value for name, value in wanted.items() if value > 0]
        counts.append(self.left.get("pods", float(most)))
        return max(0, min(most, *map(int, counts)))


def outlook(cluster: Cluster, opts: KubernetesOptions, spec: JobSpec) -> Outlook:
    """Lists of all nodes and pods; without the right to list them, only the queue is known.

    Raises `LaunchError` if the cluster does not answer, or would not take the job: it has no such queue.
    """
    try:
        if opts.queue:
            queues.check(cluster, opts.queue)
        nodes = _nodes(cluster)
        waiting, own = _pods(cluster, nodes)
        queue = queues.waiting(cluster, opts.queue)
    except api.ApiError as error:
        why = api.explained(error, cluster, _DOING)
        if error.status != 403:
            raise why from error
        return Outlook({**nothing(), "waiting": queues.waiting(cluster, opts.queue)}, unknown(why.message))
    except api.UnreachableError as error:
        raise api.explained(error, cluster, _DOING) from error
    free = [node for node in nodes.values() if not node.used]
    gpu = opts.gpu_resource
    found: Capacity = {
        "nodes": len(nodes),
        "nodes_free": len(free),
        "gpus": sum(int(node.has.get(gpu, 0)) for node in nodes.values()),
        "gpus_free": sum(max(0, int(node.left.get(gpu, 0))) for node in nodes.values()),
        "waiting": waiting + (queue or 0),
        "own_runs": own,
    }
    return Outlook(found, _start(list(nodes.values()), opts, spec, queue))


def _start(nodes: list[_Node], opts: KubernetesOptions, spec: JobSpec, queue: int | None) -> ExpectedStart:
    """Whether the job's pods fit on the nodes that its options allow."""
    if queue:
        return unknown(f"{queue} {'is' if queue == 1 else 'are'} ahead in the queue {opts.queue}")
    fits = sum(_fits(nodes, part) for part in parts.of(spec, opts))
    return by_free(spec.nodes.min, min(fits, spec.nodes.max), spec.nodes.max, "places for its pods")


def _fits(nodes: list[_Node], part: Part) -> int:
    """How many pods of a part of the run fit, which then have those places."""
    opts = part.opts
    wanted = {name: words.amount(value) for name, value in pod.resources(opts).items()}
    selector = words.pairs(opts.node_selector, "node-selector")
    excluded, found = words.names(opts.exclude), 0
    for node in nodes:
        tolerates = not not_tolerated(node.taints, opts)
        if tolerates and selector.items() <= node.labels.items() and node.name not in excluded:
            most = min(part.nodes.max - found, 1 if opts.spread else part.nodes.max)
            count = node.fits(wanted, most)
            places = {"pods": 1.0} if "pods" in node.left else {}
            node.take({name: value * count for name, value in {**wanted, **places}.items()})
            found += count
    return found


def _nodes(cluster: Cluster) -> dict[str, _Node]:
    """The nodes that are ready and take new pods, by name."""

    def take(item: dict[str, Any]) -> _Node | None:
        ready = any(
            each["type"] == "Ready" and each["status"] == "True" for each in item["status"].get("conditions") or ()
        )
        return _Node(item) if ready and not item["spec"].get("unschedulable") else None

    listed, _ = api.collect(cluster, "/api/v1/nodes", {}, take)
    return {node.name: node for node in listed if node is not None}


def _pods(cluster: Cluster, nodes: Mapping[str, _Node]) -> tuple[int, int]:
    """Subtract what pods request from their nodes; returns how many jobs wait for one, and our runs here."""

    def take(item: dict[str, Any]) -> tuple[str, str, str, bool, dict[str, float]]:
        meta, spec = item["metadata"], item["spec"]
        owner: dict[str, str] = next(iter(meta.get("ownerReferences") or ()), {})
        run = (meta.get("labels") or {}).get(RUN_LABEL) if meta["namespace"] == cluster.namespace else None
        uses = owner.get("kind") not in _EVERYWHERE and meta["namespace"] != "kube-system"
        return run or "", spec.get("nodeName") or "", owner.get("uid") or meta["uid"], uses, requests(spec)

    listed, _ = api.collect(cluster, "/api/v1/pods", {"fieldSelector": _ACTIVE}, take)
    for _, host, _, uses, wanted in listed:
        if (node := nodes.get(host)) is not None:
            node.take(wanted)
            node.used |= uses
    return len({uid for _, host, uid, _, _ in listed if not host}), len({run for run, *_ in listed if run})
