"""Listens for the other nodes of a gang, and says that this one lives: one thread, over a connection to the store of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any, Dict, Optional

from .job import Job

Word = Dict[str, Any]
"""What one node tells all: `{"kind": "restart"|"fail"|"stop", "node": ..., "cause": ..., ...}`."""

_GONE = "gone"
"""Key of the first node whose connection to the store has ended before the node's part of the run had."""

_WATCH_S = 0.2
_BEAT_S = 1.0


class Watch:
    """A thread that keeps asking the store, over a connection of its own, so that a dead link never blocks the rest."""

    def __init__(self, job: Job, node_rank: int, store: Any) -> None:
        """`store`: ours, or torch's in an elastic run."""
        self.key = "round/0/word"
        self.word: Optional[Word] = None
        self._job = job
        self._node_rank = node_rank
        self._store = store
        self._watch_beats = False
        self._to_say: Optional[Word] = None
        self._answered = time.monotonic()
        self._beats: Dict[int, int] = {}
        self._beat_times: Dict[int, float] = {}
        self._fixed = not job.elastic
        """Over our own store, which says when a node's connection has ended; torch looks after the nodes of elastic runs."""

        if self._fixed and node_rank > 0:
            store.leave(_GONE, str(node_rank))
        threading.Thread(target=self._run, daemon=True, name="watch").start()
        threading.Thread(target=self._guard, daemon=True, name="guard").start()

    def begin(self, key: str, *, watch_beats: bool) -> None:
        """Listen for the word of a new round."""
        if key != self.key:
            self.word = None
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

    def _lost(self, loss: Word) -> None:
        if self.word is None or self.word["kind"] == "restart":
            self.word = loss

    def _guard(self) -> None:
        """A store that does not answer at all: the host or the network is gone, and the call never returns."""
        while True:
            time.sleep(1)
            silent = time.monotonic() - self._answered
            if silent > self._job.peer_timeout_s:
                self._lost(_loss(0, f"node 0 has not answered for {silent:.0f} s: its host or the network is gone"))

    def _run(self) -> None:
        beat_at = 0.0
        try:
            while True:
                key = self.key
                if self._to_say is not None:
                    self._store.compare_set(key, "", json.dumps(self._to_say))
                    self._to_say = None
                if self._store.check([key]):
                    word = json.loads(self._store.get(key))
                    if key == self.key:
                        self.word = word
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + _BEAT_S
                    self._store.add(f"beat/{self._node_rank}", 1)
                    if self._node_rank == 0 and self._watch_beats:
                        self._check_beats(now)
                if self._fixed and self._node_rank == 0 and self._store.check([_GONE]):
                    self._tell(_gone(int(self._store.get(_GONE))))
                self._answered = time.monotonic()
                time.sleep(_WATCH_S)
        except RuntimeError:  # DistNetworkError and its like: the connection was refused or reset
            self._lost(_gone(0))
            self._answered = float("inf")

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


def _loss(node: int, message: str, **more: Any) -> Word:
    return {"kind": "lost", "node": node, "message": message, "time": time.time(), **more}


def _gone(node: int) -> Word:
    """It has ended, and why is better known on its host."""
    return _loss(node, f"the agent of node {node} is gone", secondary=True)
