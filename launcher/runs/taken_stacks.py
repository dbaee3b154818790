"""The stacks that the streams of a run have: taken at a hang, after a collective timed out, or by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent.stacks import sentences
from launcher.agent.stacks.stack import MAX_GROUPS, grouped
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.agent.protocol import Event
    from launcher.agent.stacks.stack import Stack
    from launcher.results.report import Taken
    from launcher.results.stacks import StackGroup

_TOGETHER_S = 20.0
"""Answers of several nodes within this time are to one request."""

_KEPT = 5


@dataclass(slots=True)
class _Answers:
    """What the nodes have answered to one request."""

    time: float
    attempt: int
    groups: dict[int, list[Stack]] = field(default_factory=dict)
    """By node."""


class TakenStacks:
    """Collects them; of many, the latest."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._hangs: list[tuple[float, Mapping[str, Any]]] = []
        self._answers: list[_Answers] = []
        self._ranks: dict[int, int] = {}
        """The node of each rank."""

    def add(self, node: int, event: Event) -> None:
        """Take an event of a node into account."""
        when, attempt = event.fields.get("time"), event.fields.get("attempt") or 0
        if event.name == "rendezvous":
            self._ranks.update(dict.fromkeys(event.fields.get("ranks") or (), node))
        elif event.name == "worker_started" and (rank := event.fields.get("rank")) is not None:
            self._ranks[rank] = node
        if not isinstance(when, (int, float)):
            return
        if event.name == "hang":
            self._hangs = [*self._hangs, (when, event.fields)][-_KEPT:]
        elif event.name == "stacks" and event.fields.get("groups"):
            self._answer(node, event.fields["groups"], when, attempt)

    def found(self) -> list[Taken]:
        """The latest ones, in order. A hang has those that were taken for it."""
        found = [self._of_hang(when, fields) for when, fields in self._hangs]
        for each in self._answers:
            groups = grouped(one for of_node in each.groups.values() for one in of_node)
            found.append(self._taken(each.time, "request", groups))
        return sorted(found, key=lambda taken: taken["time"])[-_KEPT:]

    def _answer(self, node: int, groups: list[Stack], when: float, attempt: int) -> None:
        self._ranks.update({rank: node for group in groups for rank in group["ranks"]})
        for each in self._answers:  # in whatever order the streams are read
            near = each.time - _TOGETHER_S < when < each.time + _TOGETHER_S
            if near and node not in each.groups and each.attempt == attempt:
                each.groups[node], each.time = groups, min(each.time, when)
                return
        self._answers.append(_Answers(when, attempt, groups={node: groups}))
        self._answers = sorted(self._answers, key=lambda each: each.time)[-_KEPT:]

    def _of_hang(self, when: float, fields: Mapping[str, Any]) -> Taken:
        taken = self._taken(when, "hang", fields.get("groups") or [])
        taken["message"] = str(fields.get("message") or taken["message"])
        taken["odd"] = list(fields.get("odd") or ())
        taken["silent_s"], taken["action"] = fields.get("silent_s"), fields.get("action")
        return taken

    def _taken(self, when: float, reason: Any, groups: list[Stack]) -> Taken:
        return {
            "time": when,
            "reason": reason,
            "message": sentences.summary(groups, self._host),
            "odd": [],
            "silent_s": None,
            "action": None,
            "groups": [self._group(each) for each in groups[:MAX_GROUPS]],
        }

    def _group(self, group: Stack) -> StackGroup:
        nodes = sorted({self._ranks[rank] for rank in group["ranks"] if rank in self._ranks})
        frames: Any = group["frames"]
        threads: Any = group["threads"]
        return {
            "ranks": group["ranks"],
            "nodes": nodes,
            "hosts": [self._hosts[node] for node in nodes],
            "summary": sentences.doing(group, several=len(group["ranks"]) > 1),
            "frames": frames,
            "threads": threads,
            "state": group["state"],
        }

    def _host(self, rank: int) -> str:
        node = self._ranks.get(rank)
        return "" if node is None else self._hosts[node]
