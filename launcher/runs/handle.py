"""What is kept of a submission in `run.json`, as plain JSON: each backend adds what it finds its run by."""

from __future__ import annotations

from typing import Any, TypedDict


class Meeting(TypedDict, total=False):
    """Where node 0 listens, where that was decided at submission."""

    addresses: list[str]
    port: int
    address: str
    """The one that all nodes reach; empty: each found its own."""

    reason: str
    """Why there; only where there was something to choose."""


class _Placed(TypedDict):
    run_dir: str
    """The run's directory, here."""


class Handle(_Placed, total=False):
    """What every part of the launcher may read of it."""

    hosts: list[str]
    """By node rank, where they were chosen at submission."""

    rendezvous: Meeting
    task: int
    """Of a job array, of which this is one task."""

    shown: dict[int, int]
    """By node: so many bytes of its stream were shown already. Never kept."""

    submitting: str | bool
    """The submission has not ended, and only part of the run may be there; a text says what is known of that."""

    before: dict[str, Any]
    """How the run had ended that is being started again: `handle`, `attempt` and `result` of then."""
