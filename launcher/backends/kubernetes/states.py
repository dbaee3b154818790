"""Pods and their owner in our terms: node states, how nodes ended, and what pods wait for. Pure functions."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.backends.kubernetes.pod_status import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.backends.kubernetes.pod_status import Object, Pod
    from launcher.runs.liveness import NodeState
    from launcher.runs.node_report import Cause

_PHASES: dict[str, NodeState] = {"Pending": "pending", "Running": "running", "Succeeded": "ended", "Failed": "ended"}
_SUCCESS = ("Complete", "Completed", "Succeeded", "SuccessCriteriaMet")
FAILED = ("Failed", "FailureTarget")
_FINAL = (*_SUCCESS, *FAILED)
_UID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_RETRY = re.compile(r"\bback-off [0-9.hms]+\b")
_KILLED_EXIT_CODE = 137
_REASONS = {
    "OOMKilled": Failure.OUT_OF_MEMORY,
    "DeadlineExceeded": Failure.TIMEOUT,
    "Evicted": Failure.PREEMPTED,
    "Preempting": Failure.PREEMPTED,
    "Terminated": Failure.PREEMPTED,
    "NodeShutdown": Failure.PREEMPTED,
    "Shutdown": Failure.PREEMPTED,
    "NodeLost": Failure.NODE,
    "EvictionByEvictionAPI": Failure.PREEMPTED,
    "PreemptionByScheduler": Failure.PREEMPTED,
    "PreemptionByKubeScheduler": Failure.PREEMPTED,
    "TerminationByKubelet": Failure.PREEMPTED,
    "DeletionByTaintManager": Failure.NODE,
    "DeletionByPodGC": Failure.NODE,
}
"""Failure classes of the reasons of containers, pods and the condition DisruptionTarget; others are NODE."""

_CANNOT_START = ("Failed", "BackOff", "ErrImageNeverPull", "InspectFailed")
"""Reasons of the kubelet's events. Volumes that it mounts late, and probes, have others."""

_BACK_OFF_S, _MOST_BACK_OFF_S = 10.0, 600.0
"""How long a Job waits before it replaces an index's first pod, and at most."""

_STARTING = ("ContainerCreating", "PodInitializing", "")


def finished(owner: Object | None) -> Object | None:
    """The condition that ended a workload."""
    conditions = ((owner or {}).get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] in _FINAL and item["status"] == "True"), None)


def succeeded(owner: Object | None) -> bool:
    """Whether a workload has succeeded."""
    return (finished(owner) or {}).get("type") in _SUCCESS


def is_suspended(owner: Object | None) -> bool:
    """Whether a workload is suspended."""
    spec = (owner or {}).get("spec") or {}
    return bool((spec.get("runPolicy") or spec).get("suspend"))


def resumed(owner: Object | None) -> float:
    """When a workload was last resumed, in unix seconds; 0 if it never was suspended."""
    conditions = ((owner or {}).get("status") or {}).get("conditions") or ()
    found = [item.get("lastTransitionTime") for item in conditions if item["type"] == "Suspended"]
    return max(map(timestamp, filter(None, found)), default=0.0)


def state(pod: Pod, *, over: bool, restarts: bool) -> NodeState:
    """A node's state by its newest pod; `over`: the workload has ended, `restarts`: it would restart the pod."""
    if pod.lost and (over or pod.deleted is not None):
        return "pending" if restarts and not over else "ended"
    if not pod.ended:  # a sidecar that has not started keeps the whole pod "Pending"
        return "running" if "running" in pod.container else _PHASES.get(pod.phase, "unknown")
    return "pending" if restarts and not over and pod.disrupted else "ended"


def cause(pod: Pod) -> Cause | None:
    """How the pod ended, according to the cluster; None if only its agent knows."""
    kind, message = _told(pod)
    place = f"pod {pod.name}" + (f" on {pod.host}" if pod.host else "")
    return {"class": kind, "message": " ".join(f"{place} {message}".split())} if kind else None


def _told(pod: Pod) -> tuple[str, str]:
    """Failure class and message, from the best source; empty if nothing is known."""
    ended = pod.terminated or {}
    disruption = pod.condition("DisruptionTarget", "True")
    reason = pod.status.get("reason") or (disruption or {}).get("reason")
    said = pod.status.get("message") or (disruption or {}).get("message") or "no more is known"
    found = ("", "")
    if ended.get("reason") == "OOMKilled":
        found = Failure.OUT_OF_MEMORY, "was killed for lack of memory"
    elif reason:
        found = _REASONS.get(reason, Failure.NODE), f"was ended: {reason}: {said}"
    elif pod.lost:
        found = Failure.NODE, "is on a host that does not report"
    elif pod.deleted is not None:
        found = Failure.PREEMPTED, "was deleted"
    elif ended.get("reason") not in ("Completed", "Error", None):
        found = Failure.NODE, f"ended: {ended['reason']}: {ended.get('message') or 'no more is known'}"
    elif ended.get("exitCode") == 137:
        found = Failure.KILLED, "was killed by SIGKILL, sent by another process, before its agent could report"
    elif (ended.get("exitCode") or 0) > 128:
        found = Failure.NODE, f"ended with exit code {ended['exitCode']}, before its agent could report"
    elif not pod.has_log and (failed := next(filter(_exit_code, pod.before), None)):
        found = (
            Failure.NODE,
            f"did not start: container {failed.get('name')} ended with exit code {_exit_code(failed)}",
        )
    return found


def _exit_code(status: Object) -> int:
    """The exit code of a terminated container; 0 for others."""
    return int(((status.get("state") or {}).get("terminated") or {}).get("exitCode") or 0)


def removed(kind: str, name: str) -> Cause:
    """The cause if the workload no longer exists."""
    return {"class": Failure.CANCELLED, "message": f"{kind} {name} was deleted, or its time to live has passed"}


def swept(end: Object) -> Cause:
    """The cause for a pod that was ended with its workload."""
    return {
        "class": Failure.CANCELLED,
        "message": f"the pod ended with the run: {end.get('reason')}: {end.get('message')}",
    }


def out_of_memory(pod: Pod) -> bool:
    """Whether our container was killed for lack of memory, as it would be again."""
    ended = pod.terminated or {}
    return ended.get("reason") == "OOMKilled" and ended.get("exitCode") == _KILLED_EXIT_CODE


def unstartable(pod: Pod) -> str:
    """Why our container cannot start unless something is changed; empty if it only takes time."""
    for state in (*(item.get("state") or {} for item in pod.before), pod.container) if pod.waits else ():
        waiting = state.get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason not in _STARTING:
            return f"{reason}: {' '.join(str(waiting.get('message') or '').split())}".rstrip(": ")
    return ""


def waits_since(pod: Pod) -> float:
    """When its host began to start it, in unix seconds."""
    return timestamp(pod.status.get("startTime") or pod.created)


def unheard(nodes: Sequence[Sequence[Pod]], *, restarts: bool, context: str = "") -> str:
    """Which node is on an unreachable host, in words; empty if none is. `context`: the one of the cluster."""
    for pod in (pods[-1] for pods in nodes if pods):
        if pod.lost:
            where = f" --context={quote(context)}" if context else ""  # other clusters may have a host of that name
            until = f"once {pod.host} is back, or is removed: kubectl delete node {pod.host}{where}"
            what = f"node {pod.node} (pod {pod.name}) is on host {pod.host}, which does not report"
            return f"{what}; it starts again {until}" if restarts else what
    return ""


def waits_for(nodes: Sequence[Sequence[Pod]]) -> str:
    """What existing pods wait for; empty if nothing is known."""
    waiting = [pods[-1] for pods in nodes if pods and pods[-1].waits]
    for pod in waiting:
        if why := unstartable(pod):
            return f"{_count(waiting, nodes)}: {why}"
    for pod in waiting:
        unscheduled = pod.condition("PodScheduled", "False")
        if unscheduled:
            return f"{_count(waiting, nodes)}: {unscheduled.get('message') or unscheduled.get('reason')}"
    return ""


def backs_off(nodes: Sequence[Sequence[Pod]]) -> str:
    """How long Kubernetes waits before it replaces the pods, which have all ended; empty if it does not wait long."""
    newest = [pods[-1] for pods in nodes if pods]
    ended = [pod for pod in newest if pod.ended and pod.disrupted]
    most = max((pod.restarts for pod in ended), default=0)
    if not most or len(ended) < len(newest):
        return ""
    pause_s = min(_BACK_OFF_S * 2 ** min(most, 10), _MOST_BACK_OFF_S)
    count = f"{len(ended)} of {len(nodes)} pods have ended"
    return f"{count}: Kubernetes starts them again {pause_s:.0f} s later, as they had ended {most} times before"


def steady(text: str, name: str) -> str:
    """A reason without its volatile parts: random suffixes of pods' names, their uids, the delay of a retry."""
    text = re.sub(rf"\b({re.escape(name)}(?:-[a-z][a-z0-9-]*)?-\d+)-[a-z0-9]{{5}}(?![a-z0-9-])", r"\1", text)
    return _RETRY.sub("back-off", _UID.sub("...", text))


def _count(waiting: Sequence[Pod], nodes: Sequence[Sequence[Pod]]) -> str:
    return f"{len(waiting)} of {len(nodes)} pods wait"


def cannot_start_since(events: Iterable[Object]) -> float | None:
    """When a pod's host first reported that its container cannot start, in unix seconds; None if it has not."""
    reports = (item for item in events if item.get("reason") in _CANNOT_START and item.get("type") == "Warning")
    times = filter(None, (item.get("firstTimestamp") or item.get("eventTime") for item in reports))
    return min(map(timestamp, times), default=None)


def event_text(events: Iterable[Object]) -> str:
    """The last warning among the events of an object."""
    warnings = [item for item in events if item.get("type") == "Warning"]
    last = max(warnings, key=lambda item: str(item.get("lastTimestamp") or item.get("eventTime") or ""), default=None)
    return "" if last is None else f"{last.get('reason')}: {' '.join(str(last.get('message')).split())}"
