"""What a run has used, as its nodes' streams tell it: time, GPUs, CPUs and memory, and what restarts have cost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from launcher.runs import samples
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.protocol import Event
    from launcher.results.run import RunState
    from launcher.results.usage import Usage
    from launcher.runs.samples import NodeSample


@dataclass(slots=True)
class Mean:
    """A mean that is weighted by time."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float | None, weight: float) -> None:
        """Take a value into account that held for that long."""
        if value is not None:
            self.total, self.weight = self.total + value * weight, self.weight + weight

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.weight if self.weight else None


@dataclass(slots=True)
class NodeUsage:
    """What one node's stream tells."""

    attempts: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When each began, and the last sign of life in it."""

    gpus: int | None = None
    cpus: int | None = None
    restarts: int = 0
    lost_s: float = 0.0
    """How long its workers did not run because they were restarted."""

    working: dict[int, float] = field(default_factory=dict)
    """When the first worker of each attempt was started."""

    cpu: Mean = field(default_factory=Mean)
    gpu: Mean = field(default_factory=Mean)
    peak: tuple[int, int | None] = (0, None)
    _stopped: float | None = None
    _decoder: samples.Decoder = field(default_factory=samples.Decoder)
    _sampled: float | None = None

    def add(self, event: Event) -> NodeSample | None:
        """Take an event of its stream into account, in their order; returns the sample, if it was one."""
        when = event.fields.get("time")
        if not isinstance(when, (int, float)):
            return None
        attempt = event.fields.get("attempt") or 0
        self.attempts[attempt] = (self.attempts.get(attempt, (when, when))[0], when)
        if event.name == "agent_started":
            self._stopped = self._sampled = None
        elif event.name == "host_facts":
            self.gpus, self.cpus = event.fields.get("gpus"), event.fields.get("cpus")
        elif event.name == "restart":
            self.restarts, self._stopped = self.restarts + 1, self._stopped or when
        elif event.name == "worker_started":
            self.working.setdefault(attempt, when)
            self.lost_s += max(0.0, when - self._stopped) if self._stopped is not None else 0.0
            self._stopped = None
        elif self._decoder.add(event) and (now := self._decoder.now):
            self._sample(now)
            return now
        return None

    def _sample(self, now: NodeSample) -> None:
        passed = 1.0 if self._sampled is None else max(0.0, now.time - self._sampled)
        self._sampled = now.time
        self.cpus = self.cpus or now.cpus
        used = [rank.cpu for rank in now.ranks if rank.cpu is not None]
        self.cpu.add(sum(used) if used else None, passed)
        for gpu in now.gpus:
            self.gpu.add(gpu.use, passed)
        memory = sum(rank.memory_bytes or 0 for rank in now.ranks)
        if memory > self.peak[0]:
            self.peak = (memory, now.memory_total_bytes)

    @property
    def held_s(self) -> float:
        """How long the run has had the node."""
        return sum(last - first for first, last in self.attempts.values())


def summed(found: Sequence[NodeUsage], state: RunState, *, whole: bool) -> Usage | None:
    """What the nodes have used together; None if none has said anything. `whole`: all that they said was read."""
    nodes = [node for node in found if node.attempts]
    if not nodes or not state["nodes"]:
        return None
    cpu, gpu = Mean(), Mean()
    for node in nodes:
        if node.cpu.value is not None and node.cpus:
            cpu.add(100 * node.cpu.value / node.cpus, node.cpus)
        gpu.add(node.gpu.value, node.gpus or 1)
    gpus, memory = _total([node.gpus for node in nodes]), max(node.peak for node in nodes)
    return {
        "waited_s": state["queued_s"],
        "ran_s": round(_ran_s(nodes), 3),
        "lost_s": round(max(node.lost_s for node in nodes) + _between_s(nodes), 3),
        "restarts": max(node.restarts for node in nodes) + max(len(node.attempts) for node in nodes) - 1,
        "gpus": gpus,
        "gpu_hours": None if gpus is None else round(sum((n.gpus or 0) * n.held_s for n in nodes) / 3600, 4),
        "gpu_use": _rounded(gpu.value),
        "cpus": _total([node.cpus for node in nodes]),
        "cpu_use": _rounded(cpu.value),
        "memory_peak_bytes": memory[0] or None,
        "memory_bytes": memory[1],
        "whole": whole,
    }


def _ran_s(nodes: Sequence[NodeUsage]) -> float:
    """The time in which the run had nodes, over its attempts."""
    total = 0.0
    for attempt in {each for node in nodes for each in node.attempts}:
        spans = [node.attempts[attempt] for node in nodes if attempt in node.attempts]
        total += max(last for _, last in spans) - min(first for first, _ in spans)
    return total


def _between_s(nodes: Sequence[NodeUsage]) -> float:
    """How long no worker ran between two attempts."""
    known = sorted({attempt for node in nodes for attempt in node.attempts})
    total = 0.0
    for before, after in pairwise(known):
        ended = max(node.attempts[before][1] for node in nodes if before in node.attempts)
        began = [node.working[after] for node in nodes if after in node.working]
        total += max(0.0, min(began) - ended) if began else 0.0
    return total


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
