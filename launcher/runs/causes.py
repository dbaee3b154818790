"""What a node's end is put down to, by its agent and by what the cluster knows. Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.failures import ENDS, Failure

if TYPE_CHECKING:
    from launcher.runs.node_report import Cause, NodeReport

HEARTBEAT_S = 10.0
"""Interval of agents' heartbeats. A vanished agent's end is dated this long after its last message."""

STOPPED = (*ENDS, "lost")
"""Results of a node that was stopped from outside, or because another node was lost."""


def corrected(cause: Cause, told: Cause | None, cancelled: bool) -> Cause:
    """Correct the cause from an agent that was told to stop: only the cluster, or a request to cancel, says why."""
    if cancelled and cause.get("class") == Failure.PREEMPTED:
        return {**cause, "class": Failure.CANCELLED, "message": "the run was cancelled"}
    if told is None or cause.get("class") not in STOPPED or told["class"] == cause.get("class"):
        return cause
    if told["class"] == Failure.NODE:  # of another node, as this one's agent works
        told = {"host": None, "node": None, "secondary": "host" not in told, **told}
    return {**cause, **told}


def vanished(node: NodeReport, detail: str, told: Cause | None, cancel_requested: float | None) -> Cause:
    """The cause for a node whose agent exited without reporting a result."""
    kind, message = Failure.NODE, f"the agent on host {node.host} exited without reporting a result"
    said = "; ".join([*([detail] if detail else []), *node.last_words])
    message = f"{message}: {said}" if said else message
    if told is not None:
        kind, message = told["class"], told["message"]
    if cancel_requested is not None:
        kind, message = (
            Failure.CANCELLED,
            "cancelled by force" if node.started is not None else "cancelled before it started",
        )
    place = (
        {"host": node.host, "node": node.node}
        if told is None or "host" not in told
        else {"host": told["host"], "node": None}
    )
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
