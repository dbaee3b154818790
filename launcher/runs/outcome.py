"""Combine a run's records into its state, first cause and exit code. Pure: no I/O."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from launcher.agent.failures import ENDS, WORST_FIRST, Failure, may_come_back
from launcher.runs.causes import STOPPED, corrected, vanished
from launcher.runs.node_report import Cause, NodeReport
from launcher.system.dataclass import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.agent.protocol import Record
    from launcher.results import run as results
    from launcher.results.run import RunState, State

EXIT_CODES = {"success": 0, "failed": 1, **{str(end): end.about.exit_code or 0 for end in ENDS}}
"""Exit code of a followed run by its final state. States that are not listed are not final."""

TOO_LATE = "all workers had succeeded; node 0, lost at the end, came back after the others had exited and is ended"
"""The message for a run that `comes_too_late`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state of a run at one moment."""

    state: State
    cause: Cause | None
    nodes: tuple[NodeReport, ...]
    restarts: int
    duration_s: float | None
    queued_s: float | None = None
    """From its submission to its first agent."""

    attempt: int = 0
    """How many times the scheduler has requeued the run."""

    detail: str = ""
    """Why the run is pending, in the backend's words, or which rank is in its debugger."""

    comes_too_late: bool = False
    """As in `RunReport`, for a run that has not ended."""

    @property
    def final(self) -> bool:
        """Whether the outcome can no longer change."""
        return self.state in EXIT_CODES

    @property
    def exit_code(self) -> int | None:
        """The exit code of a final state, else None."""
        return EXIT_CODES.get(self.state)

    def to_json(self) -> RunState:
        """Plain JSON: the content of `result.json`, and what `--output json` shows."""
        cause = self.cause and {**self.cause, "may_come_back": may_come_back(self.cause)}
        return {
            "state": self.state,
            "exit_code": self.exit_code,
            "cause": cast("results.Cause | None", cause),
            "detail": self.detail,
            "restarts": self.restarts,
            "attempt": self.attempt,
            "duration_s": self.duration_s,
            "queued_s": self.queued_s,
            "nodes": [node.to_json() for node in self.nodes],
        }


class RunReport:
    """Collects the records of all nodes of a run."""

    def __init__(
        self, hosts: Sequence[str], *, min_nodes: int | None = None, may_start_again: bool = False, attempt: int = 0
    ) -> None:
        """`may_start_again`: a run that was stopped from outside is final only once the backend reports its end.

        Reports of attempts before `attempt` do not count.
        """
        self.nodes = [NodeReport(node=rank, host=host, attempt=attempt) for rank, host in enumerate(hosts)]
        # Fewer nodes than planned may have been started, for example only on hosts that were free.
        self.min_nodes = min(min_nodes or len(hosts), len(hosts) or 1)
        self.may_start_again = may_start_again
        self.may_fail: Sequence[int] = ()  # nodes whose failures end nothing by themselves
        self.elastic = False
        """Whether nodes may come and go (`--nodes 2:4`)."""

        self.queued_since: float | None = None
        """When the run was submitted to a queue, in Unix seconds."""

    @property
    def all_needed(self) -> bool:
        """Whether one failed node fails the run; an elastic run continues without it."""
        return self.min_nodes >= len(self.nodes)

    @property
    def all_well(self) -> NodeReport | None:
        """A node whose success proves that of all, even if logs are lost: the nodes of a round succeed together.

        In an elastic run, other nodes may have been lost after they had finished. A node that was not needed, as it
        came too late, proves nothing.
        """
        well = (node for node in self.nodes if node.result == "success" and not node.early)
        if self.elastic:
            return next((node for node in well if node.finished), None)
        return next(well, None) if self.all_needed and self.may_start_again else None

    @property
    def comes_too_late(self) -> bool:
        """Whether node 0 was lost after all had succeeded, and was started again: no node is left to rendezvous with.

        Node 0 ends last. Other lost nodes learn of the end from it, or are not restarted as the run has succeeded.
        """
        well = self.all_well if self.all_needed and self.may_start_again else None
        return well is not None and self.nodes[0].result is None and self.nodes[0].attempt > well.attempt

    def spares(self, node: NodeReport) -> bool:
        """Whether the others need no more of the node, even if it is lost: in an elastic run its part is done."""
        return self.elastic and node.finished

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
        """The outcome by the records so far.

        `alive`: the backend's state of each node (pending, running, ended or unknown). `causes`: what the backend knows
        about a node's end. `succeeded`: whether the backend knows that the run as a whole succeeded.
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
            queued_s=None if self.queued_since is None or not started else _span(self.queued_since, min(started)),
            attempt=max((node.attempt for node in self.nodes), default=0),
            detail="" if ended else next((debugged(node.debugger) for node in self.nodes if node.debugger), detail),
            comes_too_late=self.comes_too_late and not ended,
        )

    def _first_cause(
        self, gone: list[NodeReport], detail: str, causes: Mapping[int, Cause], cancel_requested: float | None
    ) -> Cause | None:
        """The earliest cause that is not the consequence of another."""
        asked = cancel_requested is not None
        latest = max((node.attempt for node in self.nodes), default=0)
        # A node that lost another one and has not come back yet reports on an attempt that is over.
        told = [node for node in self.nodes if node.result != "lost" or node.attempt == latest]
        found = [corrected(node.cause, causes.get(node.node), asked) for node in told if node.cause is not None]
        # What another node has measured of a lost node says more than that it is lost, which we may have caused.
        measured = {
            c.get("node") for c in found if c.get("class") == Failure.NODE and not c.get("secondary") and not asked
        }
        gone = [node for node in gone if node.node not in measured or node.last_words or node.node in causes]
        found += [
            vanished(node, detail, causes.get(node.node), cancel_requested) for node in gone if node.cause is None
        ]

        harmless = {*self.may_fail, *(node.node for node in self.nodes if self.spares(node))}

        def order(cause: Cause) -> tuple[bool, bool, float]:
            # Without a request to cancel, nodes were cancelled because something else had failed.
            swept = cause.get("class") == Failure.CANCELLED and cancel_requested is None
            return (bool(cause.get("secondary")) or swept, cause.get("node") in harmless, _time(cause))

        first = min(found, key=order, default=None)
        return first and self._placed(first)

    def _placed(self, cause: Cause) -> Cause:
        """The cause with both host and node: a report of a lost node may contain only one of them."""
        if cause.get("node") is None and cause.get("rank") is not None:
            cause = {**cause, "node": next((node.node for node in self.nodes if cause["rank"] in node.ranks), None)}
        hosts = {node.host: node.node for node in reversed(self.nodes)}
        if cause.get("host") is None and isinstance(cause.get("node"), int) and 0 <= cause["node"] < len(self.nodes):
            return {**cause, "host": self.nodes[cause["node"]].host}
        return (
            {**cause, "node": hosts[cause["host"]]}
            if cause.get("node") is None and cause.get("host") in hosts
            else cause
        )

    def _final(self, cause: Cause | None, cancel_requested: float | None, succeeded: bool) -> State:
        well = sum(node.result == "success" for node in self.nodes)
        if succeeded or self.all_well or well >= self.min_nodes:
            return "success"
        kind = cause.get("class") if cause else None
        asked = cancel_requested or 0.0
        if self.may_start_again and asked > max((node.last_seen or 0.0 for node in self.nodes), default=0.0):
            kind = Failure.CANCELLED  # while it waited to start or restart
        if kind is None:
            results = {node.result for node in self.nodes}
            kind = next((name for name in WORST_FIRST if name in results), None)
            kind = Failure.CANCELLED if cancel_requested is not None else kind
        end = Failure.named(kind)
        return end if end in ENDS else "failed"

    def _current(self, alive: Sequence[str], cancel_requested: float | None) -> State:
        if self.may_start_again and cancel_requested is None and "pending" in alive:
            return "pending"
        if (
            cancel_requested is not None
            or self.comes_too_late
            or any(node.stopping or (node.failing and not self.spares(node)) for node in self.nodes)
        ):
            return "stopping"
        if any(node.worked for node in self.nodes):
            return "running"
        if any(node.started is not None for node in self.nodes) or "running" in alive:
            return "starting"
        return "unknown" if alive and set(alive) <= {"unknown", "ended"} else "pending"


def _span(start: float, end: float) -> float:
    """Seconds between two times; 0 if clocks of different hosts have them in the wrong order."""
    return max(0.0, round(end - start, 3))


def debugged(fields: Mapping[str, Any]) -> str:
    """The message for a rank that is in its debugger."""
    return f"rank {fields.get('rank')} stopped in the debugger: {fields.get('message')}"


def _word(alive: Sequence[str], node: NodeReport) -> str:
    return alive[node.node] if node.node < len(alive) else "unknown"


def _undecided(node: NodeReport, word: str) -> bool:
    """Whether an ended node may start again: the scheduler keeps the run, or has not reported why it stopped it."""
    return word == "pending" or (node.result in STOPPED and word != "ended")


def _as_cancelled(node: NodeReport) -> NodeReport:
    """A node of a cancelled run. Its agent cannot tell cancellation from preemption."""
    cause = node.cause and corrected(node.cause, None, cancelled=True)
    result, stopping = (
        Failure.CANCELLED if word == Failure.PREEMPTED else word for word in (node.result, node.stopping)
    )
    return replace(node, result=result, stopping=stopping or "", cause=cause)


def _time(cause: Cause) -> float:
    when = cause.get("time")
    return when if isinstance(when, (int, float)) else math.inf
