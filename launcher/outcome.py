"""What a run's records add up to: its state, its first cause, its exit code. Pure: reads nothing, asks nobody."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from launcher.agent.failures import CLASSES, ENDS, may_come_back
from launcher.agent.protocol import Event, Foreign

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

from launcher.agent.protocol import Record

State = Literal["pending", "starting", "running", "stopping", "success", "failed", "cancelled", "timeout", "preempted", "unknown"]
Cause = dict[str, Any]
"""As the agent stream has it; see docs/agent-stream.md."""

EXIT_CODES = {"success": 0, "failed": 1, **{state: CLASSES[state].exit_code or 0 for state in ENDS}}
"""Exit code of a followed run by its final state. A state that is not in here is not final."""

HEARTBEAT_S = 10.0
"""An agent without a word for so long was gone by then: its end is dated so, as what is known to be earlier came first."""

TOO_LATE = "all had ended well; node 0, lost at the end, has come back to nobody and is ended"
"""What there is to say of such a run."""

_STOPPED = ("cancelled", "preempted", "lost", "timeout")
"""Results of a node that was stopped from outside, or by the loss of another one."""

_NOT_TOLD = ("last_words", "debugger")
_KEPT_FOREIGN_LINES = 8


@dataclass(slots=True)
class NodeReport:
    """What one node's stream has said so far."""

    node: int
    host: str = ""
    ranks: tuple[int, ...] = ()
    workers: int | None = None
    """Running now; None before the first one."""

    master: str = ""
    started: float | None = None
    last_seen: float | None = None
    stopping: str = ""
    restarts: int = 0
    cause: Cause | None = None
    result: str | None = None
    """Of its `done` event; None before."""

    early: bool = False
    """Whether it has ended well before the others, which could do without it: it was taken back."""

    attempt: int = 0
    """How often the scheduler has started it again."""

    lines_lost: int = 0
    """Lines of its workers that are not in the stream."""

    debugger: dict[str, Any] | None = None
    """As the event of that name has it, while a worker is kept there."""

    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_FOREIGN_LINES))

    @property
    def failing(self) -> bool:
        """Whether this node can no longer end well."""
        return self.cause is not None or self.result not in (None, "success")

    def add(self, record: Record) -> None:
        """Take one record into account; output of workers says nothing here."""
        if isinstance(record, Foreign):
            self.last_words.append(record.data[:500].decode(errors="replace"))
        elif isinstance(record, Event):
            when = record.fields.get("time")
            self.last_seen = when if isinstance(when, (int, float)) else self.last_seen
            attempt = record.fields.get("attempt", 0)
            if not isinstance(attempt, int) or attempt < self.attempt:
                return
            if attempt > self.attempt:
                self._start_again(attempt)
            handler = getattr(self, f"_on_{record.name}", None)
            if handler is not None:
                handler(record.fields)

    def _start_again(self, attempt: int) -> None:
        """What the attempt before has come to does not count any more."""
        self.attempt = attempt
        self.result = self.cause = self.workers = self.debugger = None
        self.stopping, self.early = "", False
        self.lines_lost = 0
        self.last_words.clear()

    def _on_agent_started(self, fields: dict[str, Any]) -> None:
        if self.result is not None:  # somebody started the same run once more
            self._start_again(self.attempt)
        self.host = str(fields.get("host") or self.host)
        self.started = self.started or self.last_seen

    def _on_rendezvous(self, fields: dict[str, Any]) -> None:
        ranks = fields.get("ranks")
        self.ranks = tuple(ranks) if isinstance(ranks, list) else self.ranks
        self.master = f"{fields.get('master_addr')}:{fields.get('master_port')}"
        self.restarts = fields.get("restarts") or 0
        self.workers = 0

    def _on_worker_started(self, _fields: dict[str, Any]) -> None:
        self.workers = (self.workers or 0) + 1

    def _on_worker_exited(self, fields: dict[str, Any]) -> None:
        self.workers = max(0, (self.workers or 0) - 1)
        if self.debugger is not None and fields.get("pid") == self.debugger.get("pid"):
            self.debugger = None

    def _on_debugger(self, fields: dict[str, Any]) -> None:
        self.debugger = fields

    def _on_heartbeat(self, fields: dict[str, Any]) -> None:
        workers = fields.get("workers")
        self.workers = workers if isinstance(workers, int) else self.workers
        self._lost(fields.get("lines_lost"))

    def _on_lines_lost(self, fields: dict[str, Any]) -> None:
        self._lost(fields.get("total"))

    def _lost(self, total: object) -> None:
        self.lines_lost = max(self.lines_lost, total) if isinstance(total, int) else self.lines_lost

    def _on_stopping(self, fields: dict[str, Any]) -> None:
        self.stopping = str(fields.get("reason") or "stopping")

    def _on_failure(self, fields: dict[str, Any]) -> None:
        cause = fields.get("cause")
        if isinstance(cause, dict) and self.cause is None:
            self.cause = cause

    def _on_done(self, fields: dict[str, Any]) -> None:
        self.result, self.early = str(fields.get("result") or "failed"), fields.get("early") is True
        self.restarts = fields.get("restarts") or self.restarts
        self.workers = 0
        self._lost(fields.get("lines_lost"))
        if isinstance(fields.get("cause"), dict):
            self.cause = fields["cause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state of a run at one moment."""

    state: State
    cause: Cause | None
    nodes: tuple[NodeReport, ...]
    restarts: int
    duration_s: float | None
    attempt: int = 0
    """How often the scheduler has started the run again."""

    detail: str = ""
    """Why it is pending, in the backend's words."""

    comes_too_late: bool = False
    """As `RunReport` has it, of a run that has not ended."""

    @property
    def final(self) -> bool:
        """Whether nothing of it can change any more."""
        return self.state in EXIT_CODES

    @property
    def exit_code(self) -> int | None:
        """Of a final state; else None."""
        return EXIT_CODES.get(self.state)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: what `result.json` holds and `--output json` shows."""
        nodes = [
            {**{key: value for key, value in asdict(node).items() if key not in _NOT_TOLD}, "ranks": list(node.ranks)}
            for node in self.nodes
        ]
        cause = self.cause and {**self.cause, "may_come_back": may_come_back(self.cause)}
        head = {"state": self.state, "exit_code": self.exit_code, "cause": cause, "detail": self.detail}
        return {**head, "restarts": self.restarts, "attempt": self.attempt, "duration_s": self.duration_s, "nodes": nodes}


class RunReport:
    """Collects the records of all nodes of a run."""

    def __init__(
        self, hosts: Sequence[str], *, min_nodes: int | None = None, may_start_again: bool = False, attempt: int = 0
    ) -> None:
        """`may_start_again`: a run that was stopped from outside is final only once the backend says that it has ended.

        What nodes said in an earlier attempt than `attempt` does not count.
        """
        self.nodes = [NodeReport(node=rank, host=host, attempt=attempt) for rank, host in enumerate(hosts)]
        self.min_nodes = len(hosts) if min_nodes is None else min_nodes
        self.may_start_again = may_start_again

    @property
    def all_needed(self) -> bool:
        """Whether one failed node fails the run; an elastic run goes on without it."""
        return self.min_nodes >= len(self.nodes)

    @property
    def all_well(self) -> NodeReport | None:
        """A node by which all have ended well: agents of a fixed number of nodes do so together only, and a log may be gone."""
        well = (node for node in self.nodes if node.result == "success" and not node.early)
        return next(well, None) if self.all_needed and self.may_start_again else None

    @property
    def comes_too_late(self) -> bool:
        """Whether node 0 was lost when all had ended well, and was started again: nobody is left to meet it.

        It is the last to end. Others that are lost then hear of the end from it, or are not started again as it has ended well.
        """
        well = self.all_well
        return well is not None and self.nodes[0].result is None and self.nodes[0].attempt > well.attempt

    def add(self, node: int, record: Record) -> None:
        """Take a record from that node's stream into account."""
        if 0 <= node < len(self.nodes):
            self.nodes[node].add(record)

    def outcome(
        self,
        alive: Sequence[str] = (),
        *,
        detail: str = "",
        causes: Mapping[int, Cause] | None = None,
        cancel_requested: float | None = None,
        succeeded: bool = False,
    ) -> Outcome:
        """What it adds up to.

        `alive` is the backend's word for each node (pending, running, ended or unknown), `causes` what it knows of a node's end,
        `succeeded` whether it knows that the run as a whole has ended well.
        """
        gone = [node for node in self.nodes if node.result is None and _word(alive, node) == "ended"]
        ended = 0 < len(self.nodes) == len(gone) + sum(node.result is not None for node in self.nodes)
        if ended and self.may_start_again and cancel_requested is None:
            ended = not any(_undecided(node, _word(alive, node)) for node in self.nodes)
        cause = self._first_cause(gone, detail, causes or {}, cancel_requested)
        state = self._final(cause, cancel_requested, succeeded) if ended else self._current(alive, cancel_requested)
        started = [node.started for node in self.nodes if node.started is not None]
        seen = [node.last_seen for node in self.nodes if node.last_seen is not None]
        return Outcome(
            state=state,
            cause=None if state == "success" else cause,
            nodes=tuple(self.nodes if cancel_requested is None else map(_as_cancelled, self.nodes)),
            restarts=max((node.restarts for node in self.nodes), default=0),
            duration_s=round(max(seen) - min(started), 3) if started and seen else None,
            attempt=max((node.attempt for node in self.nodes), default=0),
            detail="" if ended else next((debugged(node.debugger) for node in self.nodes if node.debugger), detail),
            comes_too_late=self.comes_too_late and not ended,
        )

    def _first_cause(
        self, gone: list[NodeReport], detail: str, causes: Mapping[int, Cause], cancel_requested: float | None
    ) -> Cause | None:
        """The earliest one that is not the consequence of another."""
        asked = cancel_requested is not None
        latest = max((node.attempt for node in self.nodes), default=0)
        # One that lost another node and has not come back yet tells of an attempt that is over.
        told = [node for node in self.nodes if node.result != "lost" or node.attempt == latest]
        found = [_corrected(node.cause, causes.get(node.node), asked) for node in told if node.cause is not None]
        # What another node has measured of one that is gone says more than that it is gone, which may be our own doing by then.
        measured = {c.get("node") for c in found if c.get("class") == "node" and not c.get("secondary") and not asked}
        gone = [node for node in gone if node.node not in measured or node.last_words or node.node in causes]
        found += [_vanished(node, detail, causes.get(node.node), cancel_requested) for node in gone if node.cause is None]

        def order(cause: Cause) -> tuple[bool, float]:
            # What nobody asked to cancel was cancelled because something else had failed.
            swept = cause.get("class") == "cancelled" and cancel_requested is None
            return (bool(cause.get("secondary")) or swept, _time(cause))

        first = min(found, key=order, default=None)
        return first and self._placed(first)

    def _placed(self, cause: Cause) -> Cause:
        """With its node's host, or its host's node: who tells of a lost node may know one of them only."""
        if cause.get("node") is None and cause.get("rank") is not None:
            cause = {**cause, "node": next((node.node for node in self.nodes if cause["rank"] in node.ranks), None)}
        hosts = {node.host: node.node for node in reversed(self.nodes)}
        if cause.get("host") is None and isinstance(cause.get("node"), int) and 0 <= cause["node"] < len(self.nodes):
            return {**cause, "host": self.nodes[cause["node"]].host}
        return {**cause, "node": hosts[cause["host"]]} if cause.get("node") is None and cause.get("host") in hosts else cause

    def _final(self, cause: Cause | None, cancel_requested: float | None, succeeded: bool) -> State:
        well = sum(node.result == "success" for node in self.nodes)
        if succeeded or self.all_well or well >= self.min_nodes:
            return "success"
        kind = cause.get("class") if cause else None
        asked = cancel_requested or 0.0
        if self.may_start_again and asked > max((node.last_seen or 0.0 for node in self.nodes), default=0.0):
            kind = "cancelled"  # while it waited to start, perhaps again
        if kind is None:
            results = {node.result for node in self.nodes}
            kind = next((name for name in ("failed", "timeout", "preempted", "cancelled") if name in results), None)
            kind = "cancelled" if cancel_requested is not None else kind
        return kind if kind in ENDS else "failed"

    def _current(self, alive: Sequence[str], cancel_requested: float | None) -> State:
        if self.may_start_again and cancel_requested is None and "pending" in alive:
            return "pending"
        if cancel_requested is not None or self.comes_too_late or any(node.stopping or node.failing for node in self.nodes):
            return "stopping"
        if any(node.workers for node in self.nodes):
            return "running"
        if any(node.started is not None for node in self.nodes) or "running" in alive:
            return "starting"
        return "unknown" if alive and set(alive) <= {"unknown", "ended"} else "pending"


def debugged(fields: Mapping[str, Any]) -> str:
    """What there is to say of a rank that is in its debugger."""
    return f"rank {fields.get('rank')} stopped in the debugger: {fields.get('message')}"


def _word(alive: Sequence[str], node: NodeReport) -> str:
    return alive[node.node] if node.node < len(alive) else "unknown"


def _undecided(node: NodeReport, word: str) -> bool:
    """Whether a node that has ended may start again: the scheduler keeps the run, or has not yet said what it stopped it for."""
    return word == "pending" or (node.result in _STOPPED and word != "ended")


def _corrected(cause: Cause, told: Cause | None, cancelled: bool) -> Cause:
    """An agent that was told to stop cannot know what for; the cluster does, and who has asked for it does."""
    if cancelled and cause.get("class") == "preempted":
        return {**cause, "class": "cancelled", "message": "the run was cancelled"}
    if told is None or cause.get("class") not in _STOPPED or told["class"] == cause.get("class"):
        return cause
    if told["class"] == "node":  # another one than this, whose agent is well; the one without a word, if nobody knows better
        told = {"host": None, "node": None, "secondary": "host" not in told, **told}
    return {**cause, **told}


def _as_cancelled(node: NodeReport) -> NodeReport:
    """A node of a run that somebody has cancelled: whether it was to be taken back, or cancelled, its agent cannot tell."""
    cause = node.cause and _corrected(node.cause, None, cancelled=True)
    result, stopping = ("cancelled" if word == "preempted" else word for word in (node.result, node.stopping))
    return replace(node, result=result, stopping=stopping or "", cause=cause)


def _vanished(node: NodeReport, detail: str, told: Cause | None, cancel_requested: float | None) -> Cause:
    """The cause for a node whose agent is gone and did not say how it ended."""
    kind, message = "node", f"the agent on host {node.host} ended without a word"
    said = "; ".join([*([detail] if detail else []), *node.last_words])
    message = f"{message}: {said}" if said else message
    if told is not None:
        kind, message = told["class"], told["message"]
    if cancel_requested is not None:
        kind, message = "cancelled", "cancelled by force" if node.started is not None else "cancelled before it started"
    place = {"host": node.host, "node": node.node} if told is None or "host" not in told else {"host": told["host"], "node": None}
    return {
        "class": kind,
        "message": message,
        **place,
        "rank": None,
        "local_rank": None,
        "exit_code": None,
        "signal": None,
        "traceback": None,
        "time": None if node.last_seen is None else node.last_seen + HEARTBEAT_S,
        "secondary": False,
    }


def _time(cause: Cause) -> float:
    when = cause.get("time")
    return when if isinstance(when, (int, float)) else math.inf
