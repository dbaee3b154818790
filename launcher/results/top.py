"""What `distlaunch top` shows."""

from __future__ import annotations

from typing import TypedDict

from launcher.results.progress import Finding, Progress, Watched
from launcher.results.run import State  # noqa: TC001 - schemas are made from the types


class TopRank(TypedDict):
    """One rank of a run; null: not known."""

    rank: int
    node: int
    host: str
    state: str
    """In one word: `starts`, `runs`, `suspended`, `in the kernel` (waits for a device or a disk), `exited 1`, ..."""

    odd: str
    """Why it is worth a look; empty if it is not. The ranks are sorted by this."""

    cpu: float | None
    memory_bytes: int | None
    gpu: float | None
    """Percent of use, where a node has as many GPUs as ranks."""

    lines_per_s: float | None
    step: int | None
    steps: int | None
    loss: float | None
    silent_s: float | None
    """Seconds since its last line arrived."""

    last_line: str


class TopNode(TypedDict):
    """One node of a run; null: not known."""

    node: int
    host: str
    state: str
    odd: str
    ranks: list[int]
    cpu: float | None
    cpus: int | None
    memory_bytes: int | None
    memory_total_bytes: int | None
    gpu: float | None
    """The mean use of its GPUs in percent."""

    gpu_memory_bytes: int | None
    power_w: float | None
    received: float | None
    """Bytes per second."""

    sent: float | None
    rdma_received: float | None
    rdma_sent: float | None
    restarts: int
    silent_s: float | None
    """Seconds since its agent's last sign of life."""


class Top(Watched):
    """One run now."""

    run: str
    state: State
    detail: str
    sampled: bool
    """Whether there are samples: none of a run that is younger than their interval, or has `--samples 0`."""

    nodes: list[TopNode]
    ranks: list[TopRank]


class TopRun(TypedDict):
    """One of all runs that have not ended."""

    run: str
    state: State
    nodes: str
    progress: Progress | None
    findings: list[Finding]
    created: float | None
    """Unix seconds."""


class Tops(TypedDict):
    """All runs that have not ended: `top` without a run."""

    runs: list[TopRun]
