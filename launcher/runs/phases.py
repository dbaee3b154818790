"""How long each part of a run's start took, by the first events of node 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.protocol import Event
from launcher.runs import status

if TYPE_CHECKING:
    from launcher.runs.records import Run

STEPS = (
    ("agent", "agent_started"),
    ("import", "host_facts"),
    ("rendezvous", "rendezvous"),
    ("workers", "worker_started"),
)
"""Each phase, with the event that ends it; the first one begins with the submission."""


def of(run: Run) -> dict[str, float]:
    """Seconds by phase, as far as they are over; the first one has the queue in it. May raise `StorageError`."""
    reached: dict[str, float] = {}
    for record in status.ends(run.stream_path(0)):
        when = record.fields.get("time") if isinstance(record, Event) else None
        if isinstance(record, Event) and isinstance(when, (int, float)):
            reached.setdefault(record.name, when)
    found: dict[str, float] = {}
    before = run.created or None
    for phase, event in STEPS:
        if event not in reached:
            break
        if before is not None:
            found[phase] = round(max(0.0, reached[event] - before), 3)
        before = reached[event]
    return found
