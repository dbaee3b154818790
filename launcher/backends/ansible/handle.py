"""The handle of a run over SSH."""

from __future__ import annotations

from typing import Any, TypedDict

from launcher.runs.handle import Handle


class _Reached(TypedDict):
    host: str
    rank: int
    """The node's rank."""

    python: str
    ssh: list[str]
    """The command that reaches the host, up to its name."""

    directory: str
    """The run's directory there."""

    agent_path: str
    """The agent's archive there."""


class Node(_Reached, total=False):
    """How the agent of one node is reached and called."""

    login: str
    """The login node that reaches the host; missing if it is reached from here, or by a proxy of its own."""

    cluster: str
    """The cluster's name in the settings, for messages about the login node."""

    agent: dict[str, Any]
    """The agent's process, as the host reported it at the start."""

    work: str
    """The working directory there."""

    login_s: float
    """How long the host's login took, with the start of its Python, and without `--setup` lines."""

    mounts: list[str]
    """Where the disk with the run's directory is mounted there; empty if it is the root's."""

    stream_from: tuple[int, int]
    """Byte offsets, here and on the host, where its stream begins; set if the run was started again."""


class Streams(TypedDict):
    """How the streams of a run's nodes were when the run was about to be started again."""

    sizes: dict[str, int]
    """How much of each was here, in bytes, by the node's rank."""

    began: list[tuple[str, int, int, int]]
    """Host, rank, and `stream_from` of each node until then."""


class AnsibleHandle(Handle, total=False):
    """Kept in `run.json`."""

    nodes: list[Node]
    """Nodes that were asked to start, in rank order; missing until one was."""

    streams: Streams
    """Only while the run is being started again."""


def more_s(node: Node) -> float:
    """How much longer than usual the node's host may take to answer, as its login took long."""
    return 2 * node.get("login_s", 0.0)
