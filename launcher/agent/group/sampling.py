"""The stacks of all nodes: one request to them with their answers, and two of these with a pause."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from ..store.interface import Store

if TYPE_CHECKING:
    from ..hang_messages import GroupToAgent

ASK = "stacks/ask"
"""Key with the number of the last request, and ` dumps` if it is also for what flight recorders have."""

GATHER_S = 6.0
"""How long all nodes may take to answer; some need py-spy."""

_LOOK_S, _AGAIN_S = 1.0, 30.0
_GROWS = 2.0


class Sampling:
    """On node 0: two samples once all nodes are quiet, and again after twice the time."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: how long after two samples the next ones are taken at first."""
        self._first_s = patience_s
        self._samples: List[List[Dict[str, Any]]] = []
        self._gathering: Optional[Gathering] = None
        self._next_at = self._patience_s = self._sampled_at = 0.0

    def look(
        self, store: Store, are_quiet: Callable[[], bool], members: Callable[[Store], List[int]]
    ) -> Optional[GroupToAgent]:
        """Do what is due; returns the message with two samples, once they are there."""
        now = time.monotonic()
        if self._gathering is None:
            if now >= self._next_at:
                self._next_at = now + _LOOK_S
                if self._samples or are_quiet():
                    self._gathering = Gathering(store, members(store))
            return None
        if not self._gathering.is_over(store):
            return None
        self._samples.append(self._gathering.answers)
        self._gathering = None
        between_s, self._sampled_at = now - self._sampled_at, now
        if len(self._samples) < 2:
            self._next_at = now + min(_AGAIN_S, self._first_s / 4)
            return None
        found, self._samples = self._samples, []
        self._patience_s = max(self._first_s, self._patience_s * _GROWS)
        self._next_at = now + self._patience_s
        return {"samples": found, "between_s": between_s}


class Gathering:
    """One request to all nodes, and their answers."""

    def __init__(self, store: Store, nodes: Sequence[int], limit_s: float = GATHER_S, *, dumps: bool = False) -> None:
        """`nodes`: which are to answer. `dumps`: whether flight recorders write theirs, and the nodes send them."""
        self._number = store.add("stacks/requests", 1)
        store.set(ASK, f"{self._number} dumps" if dumps else str(self._number))
        self._keys = [f"stacks/{self._number}/{node}" for node in nodes]
        self._limit = time.monotonic() + limit_s
        self.answers: List[Dict[str, Any]] = []

    def is_over(self, store: Store) -> bool:
        """Whether all nodes have answered, or have had the time to."""
        found = store.peek(self._keys)
        self.answers = [json.loads(each) for each in found if each]
        over = None not in found or time.monotonic() > self._limit
        if over:
            for key, value in zip(self._keys, found):
                if value:
                    store.set(key, "")
        return over
