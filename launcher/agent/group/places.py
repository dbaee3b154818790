"""Who takes part in the rounds of an elastic run: node 0 decides, and gives each node that asks its place.

The rules are those of torchelastic's dynamic rendezvous (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
The first round waits for `min_nodes`, then a last call for more, up to `max_nodes`. Nodes that come later start a new
round if there is room, or wait for a place. A lost node starts one with those that are left. There, all nodes change
one state by turns. Here a node asks once in a round and waits for its answer, so it has the same few calls however many
nodes there are.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Dict, List, Optional, Sequence, Set

from ..job import Job
from ..named_tuple import NamedTuple
from ..ranks import as_runs
from ..store.interface import Store, StoreError

NUMBERED, ASKED, THERE, CLOSED = "places/numbered", "places/asked", "places/there", "places/closed"
"""Keys: how many requests have a number, how many of these are in the store, how many nodes are there for the next
round, and that no more rounds follow."""

BEGUN = "places/begun"
"""Key that is there once the first round has begun."""

FULL, ENDS, WAIT, AGAIN = "full", "ends", "wait", "again"
"""Answers: all places are taken, for any length of time. The same, as a node has finished. A round may follow. The node
was taken for lost, and has to ask again. Any other answer is a `Place`."""

FOR_LONG = (FULL, ENDS)
"""The answers after which a node waits for any length of time."""

JOINED, BROKEN = 1, 2
"""What the counter `again` of a round has reached if another one follows: a node has come, or one of it has left."""

_LATE_S = 3.0
"""How much longer than their workers may take to end a round waits for the nodes of the one before."""

_MORE_COME_S = 3.0
"""How long the nodes of a round continue after another one has come: more may come with it."""

_LONG_S = 60.0


class Ask(NamedTuple):
    """A node's request for a place in the next round."""

    number: int
    node: int
    name: str
    workers: int


class Place(NamedTuple):
    """A node's place in a round, and how many workers each of its nodes has."""

    round: int
    rank: int
    workers: List[List[int]]
    """As `ranks.as_runs` has them."""


def key_of_ask(number: int) -> str:
    """The key of the request with that number."""
    return f"places/ask/{number}"


def key_of_end(number: int, name: str) -> str:
    """The key that is there once the workers of that node have succeeded in the round, and are counted."""
    return f"round/{number}/done/{name}"


def key_of_answer(number: int) -> str:
    """The key of its answer."""
    return f"places/answer/{number}"


def leaves(store: Store, number: int, name: str) -> bool:
    """Whether that node is to be counted now as one that has left the round: only once, as a lost one may come back."""
    return int(store.add(f"round/{number}/left/{name}", 1)) == 1


class _Inbox:
    """The requests in the store. One may be missing whose node has a number, and is about to send it, or is lost."""

    def __init__(self, store: Store, highest: int) -> None:
        self.highest = highest
        """The highest number of a node."""

        self._store = store
        self._numbered = 0
        self._missing: List[int] = []

    def read(self) -> List[Ask]:
        """Those that have come since the last call."""
        (last,) = self._store.peek([NUMBERED])
        numbers = [*self._missing, *range(self._numbered + 1, int(last or 0) + 1)]
        texts = self._store.peek([key_of_ask(number) for number in numbers])
        self._numbered = int(last or 0)
        self._missing = [number for number, text in zip(numbers, texts) if text is None]
        asks = [Ask(*json.loads(text)) for text in texts if text is not None]
        self.highest = max([self.highest, *(ask.node for ask in asks)])
        return asks


class Places:
    """Node 0's decisions, in a thread that waits for requests; the watch reports lost nodes."""

    def __init__(self, job: Job, store: Store) -> None:
        self._job, self._store = job, store
        self._lock = threading.Lock()
        self._asks: Dict[str, Ask] = {}
        """The requests without a place, by the nodes' names."""

        self._chosen: Set[str] = set()
        """The nodes of the latest round."""

        self._members: Set[str] = set()
        """Those of them that are not known to be lost."""

        self._round, self._gathers = -1, True
        self._came_at: Optional[float] = None
        """Since when there have been nodes for which the present round has room."""

        self._enough_at: Optional[float] = None
        """Since when there have been enough nodes for the next round."""

        self._told: Dict[int, str] = {}
        """The answers to requests that have no place yet."""

        self._inbox = _Inbox(store, job.max_nodes - 1)
        threading.Thread(target=self._run, daemon=True, name="places").start()

    @property
    def waiting(self) -> int:
        """How many nodes have a request without having been in the latest round; before the first one, also node 0."""
        with self._lock:
            is_early = self._round < 0 and all(ask.node for ask in self._asks.values())
            return is_early + sum(name not in self._chosen for name in self._asks)

    @property
    def highest(self) -> int:
        """The highest number of a node."""
        with self._lock:
            self._read()
            return self._inbox.highest

    def lose(self, name: str) -> None:
        """Continue without the node of that name. If it lives after all, it is to ask again.

        The others need not meet for a node that had finished: its part is done, and at the end no one waits for it.
        """
        with self._lock:
            self._read()  # its last request may have come just before
            ask = self._asks.pop(name, None)
            if ask is not None:
                self._store.set(key_of_answer(ask.number), AGAIN)
            if name in self._members:
                self._members.discard(name)
                if not self._store.check([key_of_end(self._round, name)]):
                    self._begin_again(BROKEN)
                elif leaves(self._store, self._round, name):
                    self._store.add(f"round/{self._round}/shutdown", 1)

    def _run(self) -> None:
        seen = 0
        try:
            while True:
                asked, closed = self._store.wait({ASKED: seen + 1, CLOSED: None}, self._turn(time.monotonic()))
                if closed is not None:
                    return
                seen = int(asked or 0)
                with self._lock:
                    self._read()
        except StoreError:
            pass  # the run has ended

    def _read(self) -> None:
        """Take the new requests."""
        for ask in self._inbox.read():
            self._asks[ask.name] = ask
            if ask.name in self._members and not self._gathers:
                self._begin_again(BROKEN)  # it has ended its workers

    def _turn(self, now: float) -> float:
        """Decide what can be decided now; seconds until something else can."""
        with self._lock:
            if not self._gathers and self._have_come(now) and self._may_begin_again():
                self._begin_again(JOINED)
            pause_s = self._gather(now) if self._gathers else _LONG_S
            answer = self._answer() if self._asks else WAIT
            told = {ask.number: answer for ask in self._asks.values()}
            changed = {number for number, text in told.items() if self._told.get(number, WAIT) != text}
            if changed:
                self._store.multi_set({key_of_answer(number): told[number] for number in changed})
            self._told = told
            return pause_s

    def _answer(self) -> str:
        """The answer to nodes that have no place in the present round."""
        if self._gathers:
            return WAIT
        if len(self._members) >= self._job.max_nodes:
            return FULL
        return ENDS if self._store.peek([f"round/{self._round}/outcome"]) == [b"ends"] else WAIT

    def _have_come(self, now: float) -> bool:
        """Whether the present round is to end for nodes that have come: once all its room is taken, or no more come."""
        room = self._job.max_nodes - len(self._members)
        if not self._asks or room <= 0:
            self._came_at = None
            return False
        self._came_at = now if self._came_at is None else self._came_at
        return len(self._asks) >= room or now >= self._came_at + _MORE_COME_S

    def _may_begin_again(self) -> bool:
        """Whether no node of the round has finished: the first decision counts, for all nodes."""
        return self._store.compare_set(f"round/{self._round}/outcome", "", "again") == b"again"

    def _begin_again(self, how: int) -> None:
        """Have the nodes of the present round ask again."""
        if how == BROKEN:
            self._store.set(f"round/{self._round}/outcome", "again")
        self._store.add(f"round/{self._round}/again", how)
        self._gathers, self._came_at = True, None

    def _gather(self, now: float) -> float:
        """Begin the next round if its nodes are there; seconds until it can begin without those that are late."""
        asks = sorted(self._asks.values(), key=lambda ask: (ask.name not in self._members, ask.node, ask.number))
        chosen = asks[: self._job.max_nodes]
        self._store.set(THERE, str(len(chosen)))
        if len(chosen) < self._job.min_nodes or all(ask.node for ask in chosen):  # node 0 has the run's store
            self._enough_at = None
            return _LONG_S
        self._enough_at = now if self._enough_at is None else self._enough_at
        left_s = self._enough_at + self._patience_s(is_full=len(chosen) == self._job.max_nodes) - now
        if left_s > 0:
            return left_s
        self._begin(chosen)
        return _LONG_S

    def _patience_s(self, *, is_full: bool) -> float:
        """How long to wait for more nodes, or for others: those of the round before are to stay in."""
        if self._round < 0:
            return 0.0 if is_full else self._job.last_call_s
        return 0.0 if all(name in self._asks for name in self._members) else self._job.round_grace_s + _LATE_S

    def _begin(self, chosen: Sequence[Ask]) -> None:
        self._round, self._gathers, self._enough_at = self._round + 1, False, None
        by_rank = sorted(chosen, key=lambda ask: (ask.node, ask.number))
        workers = as_runs(ask.workers for ask in by_rank)
        places = {ask.number: Place(self._round, rank, workers) for rank, ask in enumerate(by_rank)}
        self._chosen = {ask.name for ask in chosen}
        self._members = {*self._chosen}
        for name in self._chosen:
            del self._asks[name]
        answers = {key_of_answer(number): json.dumps(place) for number, place in places.items()}
        self._store.multi_set({BEGUN: "", **answers})
