"""What the events of all nodes tell about a run over time: start-up, rounds, and what happened when. Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from launcher.runs.reader import hang_text, lost_text
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.protocol import Event
    from launcher.results.report import Moment, NodeStart, PhaseName, Round

    Kind = Literal["start", "restart", "warning", "stop", "failure", "end"]

_MAX_MOMENTS = 1000
"""Of more, the first and the last half: a flood of warnings hides neither the start nor how it ended."""

_MAX_ROUNDS = 1000
_PHASES: tuple[tuple[PhaseName, str], ...] = (
    ("agent", "agent_started"),
    ("import", "host_facts"),
    ("rendezvous", "rendezvous"),
    ("workers", "worker_started"),
    ("first line", "first_line"),
)
"""Each phase of a start-up, with the event that ends it. The queue comes before them."""

_STEPS = frozenset(event for _, event in _PHASES)


@dataclass(slots=True)
class _Node:
    """One node's start-up in its last attempt."""

    attempt: int = 0
    reached: dict[str, float] = field(default_factory=dict)
    """The first time of each event that ends a phase."""

    first_round: object = None
    """The first of its rounds, in an elastic run perhaps a late one."""


_Moments = dict[tuple[int, str, str], tuple[float, set[int]]]
"""By attempt, kind and text: the first time, and the nodes."""


class History:
    """Collects the events of a run's nodes."""

    def __init__(self, hosts: Sequence[str], submitted: float | None) -> None:
        """`submitted`: when the run was submitted; None if it is not known, or was started again by request."""
        self._hosts = list(hosts)
        self._nodes = [_Node() for _ in hosts]
        self._submitted = submitted
        self._rounds: dict[tuple[int, str, int], Round] = {}
        self._moments: _Moments = {}

    def add(self, node: int, event: Event) -> None:
        """Take an event of a node into account."""
        when = event.fields.get("time")
        if not 0 <= node < len(self._nodes) or not isinstance(when, (int, float)):
            return
        attempt = event.fields.get("attempt", 0)
        attempt = attempt if isinstance(attempt, int) else 0
        self._step(node, event, attempt, when)
        handler = getattr(self, f"_on_{event.name}", None)
        if handler is not None:
            handler(node, event.fields, attempt, when)

    @property
    def attempt(self) -> int:
        """The last attempt that a node has started."""
        return max((node.attempt for node in self._nodes), default=0)

    def starts(self) -> list[NodeStart]:
        """The start-up of each node in the last attempt."""
        attempt = self.attempt
        now = [node if node.attempt == attempt else _Node() for node in self._nodes]
        agents = [node.reached["agent_started"] for node in now if "agent_started" in node.reached]
        if not agents:
            return []
        submitted = self._submitted if attempt == 0 else None
        first = max(min(agents), submitted or 0.0)
        found: list[NodeStart] = []
        for number, node in enumerate(now):
            if node.reached:
                begin: list[Any] = [] if submitted is None else [{"name": "queue", "start": submitted, "end": first}]
                phases = begin + _phases(node.reached, first)
                found.append({"node": number, "host": self._hosts[number], "phases": phases})
        return found

    def rounds(self, end: float) -> list[Round]:
        """All rounds in order. `end`: when the run ended, or now."""
        found: list[Round] = [{**self._rounds[key]} for key in sorted(self._rounds)]  # the current one has no end yet
        for each in found:
            if not each["end"]:
                later = [other["start"] for other in found if _follows(other, each)]
                each["end"] = max(each["start"], min([end, *later]))
        return found

    def moments(self) -> list[Moment]:
        """What happened, in order; the same on several nodes is one moment."""
        found: list[Moment] = []
        for (_, kind, text), (when, nodes) in _ends(self._moments).items():
            more = f" ({len(nodes)} nodes)" if len(nodes) > 1 else ""
            node = next(iter(nodes)) if len(nodes) == 1 else None
            found.append({"time": when, "node": node, "kind": kind, "text": text + more})  # type: ignore[typeddict-item]  # a `Kind`
        return found

    def _step(self, node: int, event: Event, attempt: int, when: float) -> None:
        known = self._nodes[node]
        if event.name == "agent_started":
            self._nodes[node] = _Node(attempt, {"agent_started": when})
            self._hosts[node] = str(event.fields.get("host") or self._hosts[node])
        elif event.name in _STEPS and attempt == known.attempt:
            number = event.fields.get("round")
            known.first_round = number if known.first_round is None else known.first_round
            if number in (None, known.first_round):
                known.reached.setdefault(event.name, when)

    def _note(self, node: int, attempt: int, kind: Kind, text: str, when: float) -> None:
        key = (attempt, kind, text)
        if key in self._moments:
            first, nodes = self._moments[key]
            nodes.add(node)
            self._moments[key] = (min(first, when), nodes)
            return
        if len(self._moments) >= 2 * _MAX_MOMENTS:
            self._moments = _ends(self._moments)
        self._moments[key] = (when, {node})

    def _end_round(self, role: str, attempt: int, when: float, why: str) -> None:
        """The latest round of the role has ended."""
        keys = [key for key in self._rounds if key[0] == attempt and key[1] == role]
        if keys:
            each = self._rounds[max(keys)]
            each["end"], each["ended_by"] = max(each["end"], when), each["ended_by"] or why

    def _on_agent_started(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        after = f" after {fields['after']}" if fields.get("after") else ""
        self._note(node, attempt, "start", f"attempt {attempt} starts{after}" if attempt else "agents start", when)

    def _on_rendezvous(self, _node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        role, number = str(fields.get("role") or ""), fields.get("round") or 0
        known = self._rounds.get((attempt, role, number))
        if known is not None:
            known["start"] = min(known["start"], when)
        elif len(self._rounds) < _MAX_ROUNDS:
            self._rounds[attempt, role, number] = {
                "attempt": attempt, "round": number, "role": role, "world_size": fields.get("world_size") or 0,
                "start": when, "end": 0.0, "ended_by": "",
            }  # fmt: skip

    def _on_restart(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        why = _message(fields)
        self._end_round(str(fields.get("role") or ""), attempt, when, why)
        count = f"restart {fields.get('restarts')} of {fields.get('max_restarts')}"
        self._note(node, attempt, "restart", f"{count}: {why}" if why else count, when)

    def _on_warning(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        self._note(node, attempt, "warning", str(fields.get("message")), when)

    def _on_hang(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        self._note(node, attempt, "warning", hang_text(fields), when)

    def _on_lines_lost(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        self._note(node, attempt, "warning", lost_text(fields), when)

    def _on_stopping(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        self._note(node, attempt, "stop", f"workers are being stopped: {fields.get('reason')}", when)

    def _on_failure(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        self._note(node, attempt, "failure", _message(fields), when)

    def _on_done(self, node: int, fields: dict[str, Any], attempt: int, when: float) -> None:
        result = str(fields.get("result") or "failed")
        for role in {key[1] for key in self._rounds if key[0] == attempt}:
            self._end_round(role, attempt, when, _message(fields) or result)
        self._note(node, attempt, "end", f"ended: {result}", when)


def _ends(moments: _Moments) -> _Moments:
    """In order of their times; of too many, the first and the last ones."""
    found = sorted(moments.items(), key=lambda moment: moment[1][0])
    half = _MAX_MOMENTS // 2
    return dict(found if len(found) <= _MAX_MOMENTS else [*found[:half], *found[-half:]])


def _phases(reached: dict[str, float], first: float) -> list[Any]:
    """The phases that have ended, one after the other; clocks of hosts may differ, so none ends before it starts."""
    start, found = first, []
    for name, event in _PHASES:
        if event in reached:
            end = max(start, reached[event])
            found.append({"name": name, "start": start, "end": end})
            start = end
    return found


def _follows(other: Round, each: Round) -> bool:
    place = (each["attempt"], each["round"])
    return (other["attempt"] > place[0] or other["role"] == each["role"]) and (other["attempt"], other["round"]) > place


def _message(fields: dict[str, Any]) -> str:
    cause = fields.get("cause")
    return str(cause.get("message") or "").partition("\n")[0] if isinstance(cause, dict) else ""
