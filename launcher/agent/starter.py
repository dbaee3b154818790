"""What takes part in the start and the end of a node's workers: an MPI does (`mpi/world.py`), by default nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Set

if TYPE_CHECKING:
    from .messages import ExitedWorker, WorkerRequest


class Starter:
    """What the worker group's process tells it, and asks it for."""

    def __init__(self) -> None:
        self.ended: Set[int] = set()
        """Ranks that it has ended: what follows from that is not a failure of a worker."""

    def complete(self, request: WorkerRequest) -> List[int]:  # noqa: ARG002 - for subclasses
        """Add to a worker's request; returns descriptors to send with it, which are closed then."""
        return []

    def exited(self, about: ExitedWorker) -> None:
        """Take note of a worker that has exited."""
