"""Listens for the other nodes of a gang, and says that this one lives: one thread, over a connection to the store of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any, Dict, Optional, Tuple

from .job import Job
from .store import SilentError, Store, StoreError

Word = Dict[str, Any]
"""What one node tells all: `{"kind": "restart"|"fail"|"stop", "node": ..., "cause": ..., ...}`."""

_GONE = "gone"
"""Key of the first node whose connection to the store has ended before the node's part of the run had."""

_WATCH_S = 0.2
_BEAT_S = 1.0


class Watch:
    """A thread that keeps asking the store, over a connection of its own. Where nothing answers, it ends all waiting."""

    def __init__(self, job: Job, node_rank: int, store: Any, others: Store) -> None:
        """`others`: the connection of the rest of this process, which is given up with ours."""
        self.key = "round/0/word"
        self._heard: Tuple[str, Optional[Word]] = (self.key, None)
        """With the key of its round: a word that comes late is never one of the next round."""

        self._loss: Optional[Word] = None
        """That of node 0, of which no store can tell any more."""

        self._job = job
        self._node_rank = node_rank
        self._store, self._others = store, others
        self._watch_beats = False
        self._to_say: Optional[Word] = None
        self._beats: Dict[int, int] = {}
        self._beat_times: Dict[int, float] = {}
        self._fixed = not job.elastic
        """Over our own store, which says when a node's connection has ended; torch looks after the nodes of elastic runs."""

        if self._fixed and node_rank > 0:
            store.leave(_GONE, str(node_rank))
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    @property
    def word(self) -> Optional[Word]:
        """The word of the present round; in place of none, or of a restart, that node 0 is lost."""
        key, word = self._heard
        if key != self.key:
            word = None
        return self._loss or word if word is None or word["kind"] == "restart" else word

    def hear(self, key: str, word: Word) -> None:
        """The word of the round with that key."""
        self._heard = (key, word)

    def begin(self, key: str, *, watch_beats: bool) -> None:
        """Listen for the word of a new round."""
        self.key = key
        self._watch_beats = watch_beats
        self._beat_times = {}

    def say(self, word: Word) -> None:
        """Have the thread tell all nodes, where the caller must not wait for the store."""
        self._to_say = word

    def leave(self) -> None:
        """This node's part of the run is over: that its connection ends is no loss."""
        if self._fixed and self._node_rank > 0:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"left/{self._node_rank}", "")
                self._store.leave("", "")

    @property
    def has_to_say(self) -> bool:
        """Whether something is still to be told."""
        return self._to_say is not None

    def _run(self) -> None:
        beat_at = 0.0
        try:
            while True:
                key = self.key
                if self._to_say is not None:
                    tell_end(self._store, key, self._to_say)
                    self._to_say = None
                if self._store.check([key]):
                    self.hear(key, json.loads(self._store.get(key)))
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + _BEAT_S
                    self._store.add(f"beat/{self._node_rank}", 1)
                    if self._node_rank == 0 and self._watch_beats:
                        self._check_beats(now)
                if self._fixed and self._node_rank == 0 and self._store.check([_GONE]):
                    self._tell(_gone(int(self._store.get(_GONE))))
                time.sleep(_WATCH_S)
        except StoreError as error:
            silent = f"node 0 has not answered for {self._job.peer_timeout_s:.0f} s: its host or the network is gone"
            self._loss = _loss(0, silent) if isinstance(error, SilentError) else _gone(0)
            self._others.give_up()

    def _check_beats(self, now: float) -> None:
        for node in range(1, self._job.max_nodes):
            beats = self._store.add(f"beat/{node}", 0)
            if beats != self._beats.get(node) or node not in self._beat_times:
                self._beats[node], self._beat_times[node] = beats, now
            elif now - self._beat_times[node] > self._job.peer_timeout_s and not self._store.check([f"left/{node}"]):
                silent = now - self._beat_times[node]
                self._tell(_loss(node, f"node {node} was not heard of for {silent:.0f} s"))

    def _tell(self, loss: Word) -> None:
        self._store.compare_set(self.key, "", json.dumps(loss))


def tell_end(store: Store, key: str, word: Word) -> None:
    """Tell all nodes of an end; those who are about to start again hear of it in the next round."""
    while json.loads(store.compare_set(key, "", json.dumps(word)))["kind"] == "restart":
        key = f"round/{int(key.split('/')[1]) + 1}/word"


def _loss(node: int, message: str, **more: Any) -> Word:
    return {"kind": "lost", "node": node, "message": message, "time": time.time(), **more}


def _gone(node: int) -> Word:
    """It has ended, and why is better known on its host."""
    return _loss(node, f"the agent of node {node} is gone", secondary=True)
