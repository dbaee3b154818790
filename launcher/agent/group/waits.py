"""Which ranks were waiting in a collective that timed out; the nodes exchange this over the run's store."""

from __future__ import annotations

import json
import time
from typing import Dict, List, Optional, Set

from ..store.interface import Store
from .late import LateRanks

WAITS_S = 5.0
"""How long other ranks may take to time out after the first: they did not all start waiting at the same time."""

_LOOK_S = 0.3
_LOST_S = 1.5
"""A rank that waits while its peer exits notices within this time; a later one entered the collective afterwards."""


class Waits:
    """The waiting ranks of one round, as seen by one node."""

    def __init__(self, store: Store, node: int, nodes: int, world: int, late: LateRanks) -> None:
        """`store`: the round's part of the run's store."""
        self.late = late
        """Where the other ranks are."""

        self.ranks: Set[int] = set()
        """The ranks that were waiting, on all nodes."""

        self._store, self._node, self._nodes, self._world = store, node, nodes, world
        self._began: Optional[float] = None
        self._look_at = 0.0

    def tell(self, waited: Dict[str, List[int]]) -> None:
        """Publish this node's waiting ranks: those that timed out (`timeout`) or lost a connection (`lost`)."""
        if any(waited.values()):
            self._store.set(f"waited/{self._node}", json.dumps(waited))

    def look(self) -> bool:
        """Whether the collective is known to have timed out for any rank."""
        if time.monotonic() < self._look_at:
            return bool(self.ranks)
        self._look_at = time.monotonic() + _LOOK_S
        told = self._told()
        timed_out = {rank for waited in told for rank in waited["timeout"]}
        if timed_out and self._began is None:
            self._began = time.monotonic()
        self.ranks |= timed_out
        if self._began is not None and time.monotonic() - self._began < _LOST_S:
            self.ranks |= {rank for waited in told for rank in waited["lost"]}
        return bool(timed_out)

    def _told(self) -> List[Dict[str, List[int]]]:
        keys = [f"waited/{node}" for node in range(self._nodes)]
        return [json.loads(value) for value in self._store.peek(keys) if value is not None]

    @property
    def all_have_waited(self) -> bool:
        """Whether every rank is known to have been waiting."""
        return len(self.ranks) >= self._world
