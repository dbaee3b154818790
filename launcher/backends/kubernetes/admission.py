"""Refusals by the cluster's admission: pods that cannot be created, and the flags that fix that. Pure functions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.backends.kubernetes.pod_status import timestamp
from launcher.backends.kubernetes.states import event_text
from launcher.backends.kubernetes.words import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.backends.kubernetes.pod_status import Object, Pod

_REFUSED = ("FailedCreate", "FailedCreatePod", "JobCreationFailed", "MPIJobFailed")
"""Event reasons of a Job, a PyTorchJob or TFJob, a JobSet and an MPIJob."""

_POD = re.compile(r'(pods? "[^" ]*-)[a-z0-9]{0,5}"')
_QUOTA = re.compile(r"exceeded quota: [^,]*, requested: (\S*), used: \S*, limited: (\S*)")
_AMOUNTS = re.compile(r"quota|usage per|ratio per")

_FLAGS = (
    (r"runAsNonRoot|runAsUser=0|seccompProfile|capabilities\.drop", "--run-as UID[:GID], or --run-as image"),
    (r"IPC_LOCK", "no --ipc-lock and no --resource rdma/..."),
    (r"hostNetwork|host namespaces", "no --host-network"),
    (r"hostPath|restricted volume types", "--volume pvc:CLAIM:PATH in place of hostpath: and nfs:"),
    (r"(?i)service ?account", "--service-account NAME"),
    (r"PriorityClass", "--priority-class NAME"),
)
_AMOUNT_FLAGS = (
    (r"\bcpu\b", "--cpu"),
    (r"\bmemory\b", "--memory"),
    (r"/gpu\b", "--gpus-per-node"),
    (r"\bpods=", "--nodes"),
)


class Refusal(NamedTuple):
    """A refusal to create pods."""

    reason: str
    """The reason and message of the event, without the random suffix of the pod's name."""

    since: float
    """Unix seconds."""

    for_good: bool
    """Whether it lasts until the run or the rules change, rather than until other workloads end."""


def refusal(events: Iterable[Object], made: float, nodes: int, of_each: Mapping[str, int]) -> Refusal | None:
    """The latest refusal of `nodes` pods since pods were `made` (unix seconds); `of_each`: those of each maker."""
    found = [(_first(item), _last(item), item) for item in events if item.get("reason") in _REFUSED]
    found = [item for item in found if item[1] >= made]
    if not found:
        return None
    _, _, last = max(found, key=lambda item: item[1])
    text = _POD.sub(r'\1..."', " ".join(str(last.get("message")).split()))
    since = max(made, min(first for first, _, _ in found))
    nodes = of_each.get(str((last.get("involvedObject") or {}).get("name")), nodes)
    return Refusal(f"{last['reason']}: {text}", since, not _others_use(text, nodes))


def unmade(
    pods: Sequence[Sequence[Pod]], events: Sequence[Object], made: float, least: int, of_each: Mapping[str, int]
) -> tuple[str, float | None]:
    """Why some nodes have no pods, and since when (unix seconds) a refusal keeps the run below its `least` nodes.

    `made`: see `refusal`. `of_each`: by the name of the object that makes them, how many nodes each role has.
    """
    missing = sum(not known for known in pods)
    refused = refusal(events, made, least, of_each)
    why = f"{refused.reason}; {mend(refused.reason)}" if refused else event_text(events)
    stuck = refused is not None and refused.for_good and len(pods) - missing < least
    return (f"{missing} of {len(pods)} pods are not created yet: {why}" if why else ""), (
        refused.since if refused and stuck else None
    )


def mend(text: str) -> str:
    """The flags that fix a refusal."""
    table = (*_FLAGS, *(_AMOUNT_FLAGS if _AMOUNTS.search(text) else ()))
    flags = [flag for pattern, flag in table if re.search(pattern, text)]
    return "to fix it: " + ", ".join([*flags, "--patch FILE" if flags else "--patch FILE, which changes any field"])


def _others_use(text: str, nodes: int) -> bool:
    """Whether a quota has room for the whole run, once other workloads have ended."""
    found = _QUOTA.search(text)
    if found is None:
        return False
    asked, limits = (
        dict(part.partition("=")[::2] for part in group.rstrip(",").split(",")) for group in found.groups()
    )
    return all(name in limits and amount(value) * nodes <= amount(limits[name]) for name, value in asked.items())


def _first(event: Object) -> float:
    return timestamp(
        str(event.get("firstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
    )


def _last(event: Object) -> float:
    return timestamp(str(event["lastTimestamp"])) if event.get("lastTimestamp") else _first(event)
