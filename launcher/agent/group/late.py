"""Where the ranks are that have not come to a collective that timed out: asked before anything is stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Set

from ..cause import timed_out
from ..failures import Failure
from ..store.interface import Store
from .hangs import Hangs
from .sampling import Gathering

if TYPE_CHECKING:
    from ..messages import Cause
    from .flight import Told

_LIMIT_S, _WITH_DUMPS_S = 5.0, 14.0
_ANALYSES_S = 20.0
"""How long the dumps of all nodes may take to be compared."""

_LOOK_S = 0.05


class LateRanks:
    """At most one request, to all nodes; it costs nothing until then."""

    def __init__(self, store: Store, hangs: Hangs, tell: Callable[[Dict[str, Any]], None]) -> None:
        """`tell` gets what the flight recorders tell, as fields of an event."""
        self._store, self._hangs, self._recorder = store, hangs, hangs.recorder
        self._tell = tell
        self._answer_s = _WITH_DUMPS_S if self._recorder else _LIMIT_S
        self.limit_s = self._answer_s + (_ANALYSES_S if self._recorder else 0.0)
        """How long it may take until it is explained, in seconds, with the answers of all nodes."""

        self._gathering: Optional[Gathering] = None

    def ask(self, kind: str) -> None:
        """Have all nodes take stacks, and dumps if workers have a recorder, unless they were asked already.

        `kind`: the class of the failure. Of a hang, the stacks are known.
        """
        if self._gathering is None and (kind == Failure.COLLECTIVE or (kind == Failure.NO_PROGRESS and self._recorder)):
            dumps, nodes = self._recorder is not None, self._hangs.members(self._store)
            self._gathering = Gathering(self._store, nodes, self._answer_s, dumps=dumps)

    def explained(self, cause: Cause, waited: Set[int], every: Sequence[int]) -> Cause:
        """The cause, with the ranks that `waited` have waited for, and where these are. `every`: all ranks."""
        if self._gathering is None:
            return cause
        while not self._gathering.is_over(self._store):
            time.sleep(_LOOK_S)
        from ..stacks import judging, sentences  # few runs time out

        seen = judging.sample(self._gathering.answers)
        told = self._told()
        others = [rank for rank in every if rank not in waited]
        words = told.in_words(seen, with_places=cause["class"] == Failure.COLLECTIVE) if told else ""
        if cause["class"] == Failure.COLLECTIVE and waited:
            same = told is not None and bool(others) and told.never_came() == others
            where = words if same else judging.missing(seen, others, sentences.collective_of(cause["traceback"] or ""))
            cause = timed_out(cause, waited, every, where)
            words = "" if same else words
        if told:
            cause = told.added_to(cause, words)
            self._tell(told.event(seen))
        return cause

    def _told(self) -> Optional[Told]:
        """What the recorders tell, if there are dumps."""
        if self._recorder is None or self._gathering is None:
            return None
        from .flight import Told

        told = Told(self._recorder, self._gathering.answers, _ANALYSES_S)
        return told if told.files or told.problems else None
