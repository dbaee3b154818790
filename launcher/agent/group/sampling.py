"""The stacks of all nodes: one request to them with their answers, and two of these with a pause."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from ..store.interface import MAX_BYTES, Store

if TYPE_CHECKING:
    from ..hang_messages import GroupToAgent

ASK = "stacks/ask"
"""Key with the number of the last request, and ` dumps` if it is also for what flight recorders have."""

GATHER_S = 6.0
"""How long all nodes may take to answer; some need py-spy."""

_LOOK_S, _GATHERS_S, _AGAIN_S = 1.0, 0.2, 30.0
_GROWS = 2.0
_AT_ONCE = 16
"""How many answers are read by one call of the store, whose answer has a limit, too."""

_MOST_BYTES = MAX_BYTES // _AT_ONCE // 2  # as text in an answer of the store, it is longer


class Sampling:
    """On node 0: two samples once all nodes are quiet, and again after twice the time."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: how long after two samples the next ones are taken at first."""
        self._first_s = patience_s
        self._samples: List[List[Dict[str, Any]]] = []
        self._gathering: Optional[Gathering] = None
        self._next_at = self._patience_s = self._sampled_at = 0.0
        self._judged = False
        """Whether the agent has had samples of this silence."""

    @property
    def patience_s(self) -> float:
        """How soon `look` has something to do again, while all is quiet here."""
        return _GATHERS_S if self._gathering else _LOOK_S

    def look(
        self, store: Store, are_quiet: Callable[[], bool], members: Callable[[Store], List[int]]
    ) -> Optional[GroupToAgent]:
        """Do what is due; returns the message with two samples, once they are there, or that the silence is over."""
        now = time.monotonic()
        if self._judged and not are_quiet():
            self._judged = False
            return {"moves": True}
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
        if not are_quiet():  # some worker has written or ended meanwhile
            self._next_at = now + _LOOK_S
            return None
        self._patience_s = max(self._first_s, self._patience_s * _GROWS)
        self._next_at, self._judged = now + self._patience_s, True
        return {"samples": found, "between_s": between_s}


class Gathering:
    """One request to all nodes, and their answers."""

    def __init__(self, store: Store, nodes: Sequence[int], limit_s: float = GATHER_S, *, dumps: bool = False) -> None:
        """`nodes`: which are to answer. `dumps`: whether flight recorders write theirs, and the nodes send them."""
        self._number = store.add("stacks/requests", 1)
        store.set(ASK, f"{self._number} dumps" if dumps else str(self._number))
        self._answers: Dict[str, Optional[bytes]] = {f"stacks/{self._number}/{node}": None for node in nodes}
        self._limit = time.monotonic() + limit_s

    @property
    def answers(self) -> List[Dict[str, Any]]:
        """What has been answered so far, in the order of the nodes."""
        return [json.loads(each) for each in self._answers.values() if each]

    def is_over(self, store: Store) -> bool:
        """Whether all nodes have answered, or have had the time to."""
        absent = [key for key, answer in self._answers.items() if answer is None]
        is_late = time.monotonic() > self._limit
        for start in range(0, len(absent), _AT_ONCE):
            keys = absent[start : start + _AT_ONCE]
            found = {key: answer for key, answer in zip(keys, store.peek(keys)) if answer is not None}
            if found:
                self._answers.update(found)
                store.multi_set(dict.fromkeys(found, ""))  # they may be large
            if len(found) < len(keys) and not is_late:
                return False
        return True


def as_text(answer: Dict[str, Any]) -> str:
    """A node's answer for `Gathering`, without what would make it too large."""
    flight = answer.get("flight")
    without: Dict[str, Any] = {
        "flight": flight and {**flight, "dumps": "", "problem": "the dumps are too large to be sent"}
    }
    leaves_out: List[Dict[str, Any]] = [{}, without, {**without, "groups": []}]
    for less in leaves_out:
        text = json.dumps({**answer, **less})
        if len(text) <= _MOST_BYTES:
            break
    return text
