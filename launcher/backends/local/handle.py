"""What a run on this machine is found by."""

from __future__ import annotations

from typing import TypedDict

from launcher.runs.handle import Handle


class AgentProcess(TypedDict):
    """One agent; both are 0 until it was started."""

    pid: int
    start_ticks: int


class LocalHandle(Handle):
    """Kept in `run.json`."""

    python: str
    agents: list[AgentProcess]
    """By node rank."""
