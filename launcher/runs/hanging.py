"""The hang in which a run is now: what the watchdog has reported, until ranks write again or start anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        self._told: dict[int, Event] = {}
        self._ranks: dict[int, int] = {}
        """The node of each rank."""

    def add(self, node: int, event: Event) -> None:
        """Take an event of that node's stream."""
        if event.name == "hang":
            self._told[node] = event
        elif event.name in _ENDS:
            self._told.pop(node, None)
        if event.name == "rendezvous":
            self._ranks.update(dict.fromkeys(event.fields.get("ranks") or (), node))

    def added_to(self, watched: Watched, nodes: Mapping[int, Sequence[NodeSample]], hosts: Sequence[str]) -> Watched:
        """What the samples of the run's nodes tell, with the hang first. A run that hangs has no end in sight."""
        found = [self._finding(node, event, hosts) for node, event in self._told.items() if not _is_over(event, nodes)]
        if not found:
            return watched
        progress = watched["progress"]
        return {
            "progress": progress and {**progress, "eta_s": None},
            "findings": [*found, *watched["findings"]],
        }

    def _finding(self, node: int, event: Event, hosts: Sequence[str]) -> Finding:
        rank = next(iter(event.fields.get("odd") or ()), None)
        where = self._ranks.get(rank, node) if rank is not None else node
        host = hosts[where] if where < len(hosts) else ""
        message = hang_text(event.fields)
        return {"kind": "hang", "node": where, "host": host, "rank": rank, "message": message, "source": "its watchdog"}


def _is_over(event: Event, nodes: Mapping[int, Sequence[NodeSample]]) -> bool:
    """Whether a rank has written since; that is not known without samples, and then there is no hang."""
    since = [[sample for sample in series if sample.time > event.fields["time"]] for series in nodes.values()]
    return not any(since) or any(_lines(series[0]) < _lines(series[-1]) for series in since if series)


def _lines(sample: NodeSample) -> int:
    return sum(rank.lines or 0 for rank in sample.ranks)
