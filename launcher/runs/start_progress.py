"""A run's progress towards its first worker, by the events of its agents."""

from __future__ import annotations

from typing import Literal, TypeAlias

from launcher.agent.named_tuple import NamedTuple

Phase: TypeAlias = Literal["queued", "starting", "importing", "meeting"]
"""In this order: no agent runs, some run, they import what workers need, they wait for one another."""

_RUNS = ("terminal_opened", "stopping", "failure", "done")


class Progress(NamedTuple):
    """A phase, and how many of the nodes have completed it."""

    phase: Phase
    done: int
    total: int


class StartProgress:
    """Follows the nodes of one run from its submission to its first worker, and again after each restart."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._started: set[int] = set()
        self._ready: set[int] = set()
        self._runs, self._meeting = False, True
        """No worker of the round runs yet."""

    def heard(self, node: int, event: str) -> bool:
        """Take an event of a node into account. Returns whether it concerns the start."""
        if event == "agent_started":
            self._started.add(node)
            self._ready.discard(node)
            self._runs, self._meeting = False, True
        elif event in ("host_facts", "worker_started"):
            self._started.add(node)
            self._ready.add(node)
            self._meeting &= event != "worker_started"
        elif event in _RUNS:
            self._runs = True
        else:
            return False
        return True

    def missing(self) -> list[int]:
        """The nodes whose agents have not started."""
        return [node for node in range(self._nodes) if node not in self._started]

    def present(self) -> Progress | None:
        """The current phase; None once workers run or the run ends."""
        count, started, ready = self._nodes, len(self._started), len(self._ready)  # which have all started
        if self._runs or not (started > ready or self._meeting or started < count):
            return None
        if started < count:
            return Progress("starting" if started else "queued", started, count)
        return Progress("importing", ready, count) if ready < started else Progress("meeting", 0, count)
