"""Indexed Jobs, one for each part of a run: of their own, or in a JobSet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes.parts import Part
    from launcher.spec import NodeRange

Manifest = dict[str, Any]

STOPPED_EXIT_CODE = 143
"""Exit code of an agent that was asked to stop, or whose peer was: not a failure, the run starts again."""

LOST_EXIT_CODES = (75, 137, 255)
"""Exit codes of an agent that lost another node, of a killed one, and of a container lost when its host restarts."""


def spec(nodes: NodeRange, template: Manifest, max_requeues: int, container: str) -> dict[str, Any]:
    """An Indexed Job: a failed rank ends the run; a lost node counts as a restart, a disruption does not.

    A sidecar's exit never restarts a pod: after a success of our container, the run would start over.
    """
    fails = "FailIndex" if nodes.elastic else "FailJob"
    ours = {"containerName": container, "operator": "In"}
    killed = sorted((*LOST_EXIT_CODES, STOPPED_EXIT_CODE))
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {**ours, "values": [STOPPED_EXIT_CODE]}},
        {"action": "Count", "onExitCodes": {**ours, "values": list(LOST_EXIT_CODES)}},
        {"action": fails, "onExitCodes": {"operator": "NotIn", "values": [0, *killed]}},
        {"action": "Count", "onPodConditions": [{"type": "Initialized", "status": "False"}]},  # deleted before it began
        {"action": fails, "onExitCodes": {"operator": "In", "values": killed}},
    ]
    return {
        # Node 0 exits last, and with 0 only if all workers did: pods that are disrupted or wait then are not needed.
        # A role's first node also exits with 0 only when the run is over.
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "completionMode": "Indexed",
        "completions": nodes.max,
        "parallelism": nodes.max,
        "backoffLimitPerIndex": max_requeues,
        "maxFailedIndexes": nodes.max - nodes.min,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
        "template": template,
    }


def jobs(
    head: Manifest, of_run: Sequence[Part], names: Sequence[str], timed: Manifest, specs: Sequence[Manifest]
) -> list[Manifest]:
    """One Job, or one for each role; the first role's is the last one, which owns the others."""
    made = []
    for part, name, job in zip(of_run, names, specs, strict=True):
        meta = {**head["metadata"], "name": name, "labels": {**head["metadata"]["labels"], **part.labels}}
        made.append({**head, "metadata": meta, "spec": {**timed, **job}})
    return [*made[1:], made[0]]


def job_set(name: str, of_run: Sequence[Part], specs: Sequence[Manifest]) -> dict[str, Any]:
    """The spec of a JobSet, with one Job for each part."""
    found = {
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {"name": part.role or "n", "replicas": 1, "template": {"spec": job}}
            for part, job in zip(of_run, specs, strict=True)
        ],
    }
    needed = [part.role for part in of_run if not part.ignored]
    if len(needed) < len(of_run):  # pods of the other roles may wait for a host when the run is over
        found["successPolicy"] = {"operator": "All", "targetReplicatedJobs": needed or [of_run[0].role]}
    return found
