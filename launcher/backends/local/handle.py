"""The handle of a run on this machine."""

from __future__ import annotations

from typing import TypedDict

from launcher.runs.handle import Handle


class AgentProcess(TypedDict):
    """The agent of one node; both fields are 0 until it is started."""

    pid: int
    start_ticks: int


class LocalHandle(Handle):
    """Kept in `run.json`."""

    python: str
    agents: list[AgentProcess]
    """By node rank."""
