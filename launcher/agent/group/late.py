"""Where the ranks are that have not come to a collective that timed out: asked before anything is stopped."""

from __future__ import annotations

import time
from typing import List, Optional

from ..store.interface import Store
from .hangs import Gathering

_LIMIT_S = 3.0
_LOOK_S = 0.05


class LateRanks:
    """At most one request, to all nodes; it costs nothing until then."""

    def __init__(self, store: Store, nodes: int) -> None:
        """`nodes`: how many have to answer."""
        self._store, self._nodes = store, nodes
        self._gathering: Optional[Gathering] = None

    def ask(self) -> None:
        """Have all nodes take the stacks of their workers, unless they were asked already."""
        if self._gathering is None:
            self._gathering = Gathering(self._store, self._nodes, _LIMIT_S)

    def places(self, ranks: List[int], traceback: Optional[str]) -> str:
        """What these ranks do, in words; empty if no node knows. `traceback`: of a rank that waited for them."""
        from ..stacks import judging, sentences  # few runs time out

        if self._gathering is None:
            return ""
        while not self._gathering.is_over(self._store):
            time.sleep(_LOOK_S)
        called = sentences.collective_of(traceback or "")
        return judging.missing(judging.sample(self._gathering.answers), ranks, called)
