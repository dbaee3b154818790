"""Which ranks were waiting in a collective that timed out; the nodes exchange this over the run's store."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Set

from ..store.interface import Store
from .late import LateRanks

if TYPE_CHECKING:
    from ..messages import Cause

WAITS_S = 5.0
"""How long other ranks may take to time out after the first: they did not all start waiting at the same time."""

_ANY, _JUDGE, _FINDING = "waited/timed-out", "waited/judge", "waited/finding"
"""Keys: a collective has timed out for some rank, the node that finds out for which ones, and what it has found."""

_LOOK_S = 0.3
_LOST_S = 1.5
"""A rank that waits while its peer exits notices within this time; a later one entered the collective afterwards."""


class Waits:
    """The waiting ranks of one round, as seen by one node.

    One node reads what all others tell: the first one whose rank has timed out. The others wait for what it finds.
    """

    def __init__(self, store: Store, node: int, nodes: int, world: int, late: LateRanks) -> None:
        """`store`: the round's part of the run's store."""
        self.late = late
        """Where the other ranks are."""

        self.ranks: Set[int] = set()
        """The ranks that were waiting, on all nodes."""

        self._store, self._node, self._nodes, self._world = store, node, nodes, world
        self._began: Optional[float] = None
        self._look_at = 0.0
        self._has_timed_out = False
        self.is_judged = False
        """Whether another node has found out which ranks have waited."""

        self._judge: Optional[bool] = None

    def tell(self, waited: Dict[str, List[int]]) -> None:
        """Publish this node's waiting ranks: those that timed out (`timeout`) or lost a connection (`lost`)."""
        if any(waited.values()):
            told = {f"waited/{self._node}": json.dumps(waited)}
            self._store.multi_set({**told, _ANY: ""} if waited["timeout"] else told)

    def judges(self) -> bool:
        """Whether this node is to find out which ranks have waited, as it is the first one that asks."""
        if self._judge is None:
            me = str(self._node)
            self._judge = self._store.compare_set(_JUDGE, "", me).decode() == me
        return self._judge

    def look(self) -> bool:
        """Whether the collective is known to have timed out for any rank."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            if self._judge:
                self._read()
            else:
                any_, finding = self._store.peek([_ANY, _FINDING])
                self._has_timed_out, self.is_judged = any_ is not None, finding is not None
        return self._has_timed_out

    def publish(self, cause: Optional[Cause]) -> None:
        """Have the other nodes learn what this one has found; None if that is nothing: they need not wait for it."""
        self._store.set(_FINDING, json.dumps(cause))

    def finding(self) -> Optional[Cause]:
        """What the node that judges has found, if it has found anything."""
        (found,) = self._store.peek([_FINDING])
        cause: Optional[Cause] = json.loads(found) if found else None
        return cause

    def _read(self) -> None:
        told = self._told()
        timed_out = {rank for waited in told for rank in waited["timeout"]}
        if timed_out and self._began is None:
            self._began = time.monotonic()
        self.ranks |= timed_out
        if self._began is not None and time.monotonic() - self._began < _LOST_S:
            self.ranks |= {rank for waited in told for rank in waited["lost"]}
        self._has_timed_out = bool(self.ranks)

    def _told(self) -> List[Dict[str, List[int]]]:
        keys = [f"waited/{node}" for node in range(self._nodes)]
        return [json.loads(value) for value in self._store.peek(keys) if value is not None]

    @property
    def are_known(self) -> bool:
        """Whether every rank is known to have been waiting, or another node has found out which ones were."""
        return self.is_judged or len(self.ranks) >= self._world
