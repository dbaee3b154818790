"""Warnings about nodes: those that agents send, and what their numbers show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.console.gathered import Gathered
from launcher.runs.reader import lost_text
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Iterator

_AFTER_S = 0.5
"""How long a message waits for other nodes to send the same."""


class NodeWarnings:
    """Gathers the warnings of all nodes, so that one that concerns many is one line."""

    def __init__(self, nodes: int, more_cpus: str) -> None:
        """`more_cpus`: the option that gives a node more CPUs, if there is one."""
        self._gathered = Gathered[str](_AFTER_S if nodes > 1 else 0.0)
        self._lost = Gathered[str](_AFTER_S if nodes > 1 else 0.0)
        """Reasons for lost lines."""

        self._lines: dict[int, list[dict[str, Any]]] = {}
        """The `lines_lost` events of each node that wait."""

        self.notes = Gathered[tuple[str, str]](_AFTER_S)
        """What is worth a note: the words for one node, and for several."""

        self._more_cpus = more_cpus
        self._cpus: dict[int, int] = {}
        self._workers = 0
        self._short: set[int] = set()

    def heard(self, node: int, event: str, fields: dict[str, Any], now: float) -> None:
        """Take an event of a node into account."""
        if event == "warning":
            self._gathered.add(str(fields.get("message")), node, now)
        elif event == "lines_lost":
            self._lost.add(str(fields.get("reason")), node, now)
            self._lines.setdefault(node, []).append(fields)
        elif event == "host_facts" and isinstance(fields.get("cpus"), int):
            self._cpus[node] = fields["cpus"]
        elif event == "rendezvous" and isinstance(fields.get("nodes"), int) and fields["nodes"] > 0:
            world = fields.get("world_size")
            self._workers = world // fields["nodes"] if isinstance(world, int) else 0
        elif event == "worker_started" and node not in self._short:
            self._compare(node, now)

    def _compare(self, node: int, now: float) -> None:
        """Warn once about a node with more workers than CPUs."""
        cpus = self._cpus.get(node, self._workers)
        if self._workers > cpus:
            self._short.add(node)
            way = f": {self._more_cpus} gives them more" if self._more_cpus else ""
            self._gathered.add(f"{self._workers} workers share {amounts.counted(cpus, 'CPU')}{way}", node, now)

    def due(self, now: float) -> Iterator[tuple[str, list[int]]]:
        """The warnings to print now, each with the nodes that it is about."""
        yield from self._gathered.due(now)
        for reason, nodes in self._lost.due(now):
            told = [fields for node in nodes for fields in self._lines.pop(node, ())]
            if len(told) == 1:
                yield lost_text(told[0]), nodes
            else:
                lines = sum(count for fields in told if isinstance(count := fields.get("lines"), int))
                yield lost_text({"lines": lines, "reason": reason}), nodes
