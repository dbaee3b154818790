"""Reports of runs in which each node has sent given events."""

from __future__ import annotations

from typing import Any

from launcher.agent.protocol import Event
from launcher.runs.outcome import RunReport


def cause(kind: str, time: float, **more: Any) -> dict[str, Any]:
    return {"class": kind, "message": kind, "time": time, "secondary": False, "host": "h", "node": 0, "rank": 0, **more}


Sent = tuple[str, dict[str, Any]]


def report(*nodes: list[Sent], min_nodes: int | None = None) -> RunReport:
    """A report in which each node has sent these events."""
    made = RunReport([f"h{rank}" for rank in range(len(nodes))], min_nodes=min_nodes)
    for rank, events in enumerate(nodes):
        for name, fields in events:
            made.add(rank, Event(name, {"time": 100.0, "node": rank, **fields}))
    return made


STARTED: Sent = ("agent_started", {"host": "h"})
RENDEZVOUS: Sent = ("rendezvous", {"ranks": [0, 1], "master_addr": "a", "master_port": 1})
RUNNING: list[Sent] = [STARTED, RENDEZVOUS, ("worker_started", {"rank": 0})]


def done(result: str, why: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    return ("done", {"result": result, "cause": why})


def again(*nodes: list[Sent]) -> RunReport:
    made = report(*nodes)
    made.may_start_again = True
    return made


STOPPED = done("cancelled", cause("cancelled", 5))
