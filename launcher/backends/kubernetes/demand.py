"""Which nodes' logs are read: of a large run, only those that tell how it is, and those that are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.failures import RESULTS
from launcher.runs.liveness import Unread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.backends.kubernetes.pod_status import Pod
    from launcher.runs.liveness import NodeState

MOST_FOLLOWED = 512
"""Of a run with more nodes, logs are read on demand: each takes a connection through the API server to a kubelet."""

_EXPLAINED = 16
"""So many pods that ended badly are read, in case node 0 cannot tell why: it was killed, or they were."""

_RESULTS = {code: result for result, code in RESULTS.items()}
_UNEXPLAINED = "failed"
"""Agents with other results were told to stop, or have lost a node: their logs explain nothing."""


class Demand:
    """The nodes whose logs one process reads; they become more."""

    def __init__(self, nodes: int) -> None:
        self.of_all = nodes <= MOST_FOLLOWED
        """Whether all logs are read, anyway."""

        self._nodes = nodes
        self._asked = frozenset({0})  # replaced as a whole, as several threads read it
        self._failed: dict[int, Pod] = {}

    @property
    def nodes(self) -> Iterable[int]:
        """Those whose logs are followed."""
        return range(self._nodes) if self.of_all else sorted({*self._asked, *self._failed})

    def __contains__(self, node: int) -> bool:
        return self.of_all or self.names(node) or node in self._failed

    def names(self, node: int) -> bool:
        """Whether that node was asked for; node 0 always is, as its agent reports how the run has ended."""
        return node in self._asked

    def ask(self, nodes: Iterable[int]) -> None:
        """Read these nodes' logs, too."""
        self._asked |= {node for node in nodes if 0 <= node < self._nodes}

    def hear(self, pods: Iterable[Pod]) -> None:
        """Read also the logs of those that ended badly, the earliest ones first, as far as they may explain the end."""
        if self.of_all:
            return
        found = (pod for pod in pods if ended_badly(pod) and not self.names(pod.node))
        for pod in sorted(found, key=_ended_at):
            # Those of former attempts do not count: a pod that ended before this one began.
            if sum(_ended_at(other) >= pod.created for other in self._failed.values()) < _EXPLAINED:
                self._failed = {**self._failed, pod.node: pod}

    def unread(self, pods: Sequence[Sequence[Pod]], states: Sequence[NodeState]) -> Mapping[int, Unread]:
        """The nodes whose logs are not read, and how they have ended, by their agents' exit codes."""
        found = {}
        for node, state in enumerate(() if self.of_all else states):
            if not pods[node] or node in self:
                continue
            result = _RESULTS.get(_exit_code(pods[node][-1])) if state == "ended" else None
            if state == "running" or result is not None:
                found[node] = Unread(pods[node][-1].host, result)
        return found


def ended_badly(pod: Pod) -> bool:
    """Whether the pod's log may explain why the run has failed: its agent reports that, or could not."""
    return pod.terminated is not None and _RESULTS.get(_exit_code(pod), _UNEXPLAINED) == _UNEXPLAINED


def _exit_code(pod: Pod) -> int:
    """-1 as long as there is none."""
    found = (pod.terminated or {}).get("exitCode")
    return found if isinstance(found, int) else -1


def _ended_at(pod: Pod) -> str:
    """Times of the API, as text, are in order."""
    return str((pod.terminated or {}).get("finishedAt") or "")
