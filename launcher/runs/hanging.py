"""The hang in which a run is now: what the watchdog has reported, until ranks write or tell a step, or start anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.runs.reader import hang_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.agent.protocol import Event
    from launcher.results.progress import Finding, Watched
    from launcher.runs.samples import NodeSample

_ENDS = ("agent_started", "rendezvous", "restart", "done")


class Hanging:
    """Collects it from the events of all nodes. In a run with roles, each role's first node may report one."""

    def __init__(self) -> None:
        self._told: dict[int, Mapping[str, Any]] = {}
        self._ranks: dict[int, int] = {}
        """The node of each rank."""

    def add(self, node: int, event: Event) -> None:
        """Take an event of that node's stream. A whole sample has the hang, too: the event may be too far away.

        There it is null once it is over; the agents of former versions do not have it there.
        """
        whole = event.name == "sample" and event.fields.get("whole")
        told = event.fields if event.name == "hang" else event.fields.get("hang") if whole else None
        if told:
            self._told[node] = told
        elif event.name in _ENDS or (whole and "hang" in event.fields):
            self._told.pop(node, None)
        if event.name == "rendezvous":
            self._ranks.update(dict.fromkeys(event.fields.get("ranks") or (), node))

    def added_to(self, watched: Watched, nodes: Mapping[int, Sequence[NodeSample]], hosts: Sequence[str]) -> Watched:
        """What the samples of the run's nodes tell, with the hang first. A run that hangs has no end in sight."""
        found = [self._finding(node, told, hosts) for node, told in self._told.items() if not _is_over(told, nodes)]
        if not found:
            return watched
        progress = watched["progress"]
        return {
            "progress": progress and {**progress, "eta_s": None},
            "findings": [*found, *watched["findings"]],
        }

    def _finding(self, node: int, told: Mapping[str, Any], hosts: Sequence[str]) -> Finding:
        rank = next(iter(told.get("odd") or ()), None)
        where = self._ranks.get(rank, node) if rank is not None else node
        host = hosts[where] if where < len(hosts) else ""
        message = hang_text(told)
        return {"kind": "hang", "node": where, "host": host, "rank": rank, "message": message, "source": "its watchdog"}


def _is_over(told: Mapping[str, Any], nodes: Mapping[int, Sequence[NodeSample]]) -> bool:
    """Whether a rank has written or told a step since; that is not known without samples: then there is no hang."""
    since = [[sample for sample in series if sample.time > told["time"]] for series in nodes.values()]
    told_since = [[each for each in map(count, series) if each is not None] for series in since for count in _COUNTS]
    return not any(since) or any(counts[0] < counts[-1] for counts in told_since if counts)


def _lines(sample: NodeSample) -> int | None:
    """How many lines the node's ranks have written; None if the sample does not have that, as one after a gap."""
    counts = [rank.lines for rank in sample.ranks]
    return None if None in counts else sum(filter(None, counts))


def _steps(sample: NodeSample) -> int | None:
    """The sum of the steps that the node's ranks have told; None if none has."""
    steps = [rank.step for rank in sample.ranks if rank.step is not None]
    return sum(steps) if steps else None


_COUNTS = (_lines, _steps)
