"""Which ranks have waited in a collective that timed out: its nodes tell one another over the run's store."""

from __future__ import annotations

import json
import time
from typing import Dict, List, Optional, Set

from ..store.interface import Store

WAITS_S = 5.0
"""So long others have to time out in the same collective, after the first: they did not all begin to wait at one moment."""

_LOOK_S = 0.3
_LOST_S = 1.5
"""Whose peer has ended while it waited notices that within so long; who does later has only then come to the collective."""


class Waits:
    """One round's, on one node."""

    def __init__(self, store: Store, node: int, nodes: int, world: int) -> None:
        """`store`: the round's part of it."""
        self.ranks: Set[int] = set()
        """Those that have waited, on all nodes."""

        self._store, self._node, self._nodes, self._world = store, node, nodes, world
        self._began: Optional[float] = None
        self._look_at = 0.0

    def tell(self, waited: Dict[str, List[int]]) -> None:
        """Tell the others of this node's: `timeout` has timed out, `lost` has lost a connection."""
        if any(waited.values()):
            self._store.set(f"waited/{self._node}", json.dumps(waited))

    def look(self) -> bool:
        """Whether the collective has timed out for any rank, as far as it is known by now."""
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
        """Nobody is left to wait for."""
        return len(self.ranks) >= self._world
