"""What a run over SSH is found by."""

from __future__ import annotations

from typing import Any, TypedDict

from launcher.runs.handle import Handle


class _Reached(TypedDict):
    host: str
    rank: int
    """Of the node."""

    python: str
    ssh: list[str]
    """The command that reaches the host, up to its name."""

    directory: str
    """The run's directory there."""

    agent_path: str
    """The agent's archive there."""


class Node(_Reached, total=False):
    """How the agent of one node is reached and called."""

    agent: dict[str, Any]
    """Its process, as the host told it at its start."""

    work: str
    """The working directory there."""

    stream_from: tuple[int, int]
    """Byte offsets here and there from which the stream is that of this host, which took the node over from another."""


class AnsibleHandle(Handle, total=False):
    """Kept in `run.json`."""

    nodes: list[Node]
    """Those that were told to start, in rank order; missing until any was."""
