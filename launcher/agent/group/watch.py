"""Listens for the other nodes of a worker group, and reports that this one lives: one thread, on a connection of its own.

A node's process may be silent as its host has no time or memory for it, and then goes on. That its host is gone, or the network,
TCP says, as the kernel there answers for a process that does not run.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any, Callable, Dict, Optional, Set, Tuple

from ..job import Job
from ..store.interface import SilentError, Store, StoreError, UnreachableError
from ..system import facts

Verdict = Dict[str, Any]
"""What one node tells all: `{"kind": "restart"|"fail"|"stop", "node": ..., "cause": ..., ...}`."""

_WATCH_S = 0.2
_BEAT_S = 1.0
_LOAD_S = 5.0
_QUIET = 7 / 6
"""So much longer than its host may be silent, a node is before that is said: by then it is known that the host is there."""

_STALL_S = 1.0
"""Who looks so much later than it wanted to was starved itself, and has missed signs of the others meanwhile."""


class Beats:
    """How long node 0 has heard nothing of each of the others."""

    def __init__(self, now: float) -> None:
        self.expected = False
        """Whether the nodes are to beat."""

        self.quiet: Set[int] = set()
        """Nodes of which it was said that they are silent."""

        self._counts: Dict[int, int] = {}
        self._times: Dict[int, float] = {}
        self._looked_at = now

    def look(self, now: float) -> None:
        """Before the nodes are looked at one by one: what this one has missed while it stood still is none's silence."""
        stalled, self._looked_at = now - self._looked_at - _BEAT_S, now
        if stalled > _STALL_S:
            self._times = {node: seen + stalled for node, seen in self._times.items()}

    def heard(self, node: int, count: int, now: float) -> Tuple[float, bool]:
        """For how long a node with so many beats is silent, or was until now; and whether it is heard of again."""
        silent = now - self._times.get(node, now)
        if count == self._counts.get(node):
            return silent, False
        self._counts[node], self._times[node] = count, now
        again = node in self.quiet
        self.quiet.discard(node)
        return (silent if again else 0.0), again


class Watch:
    """A thread that keeps asking the store, over a connection of its own. Where nothing answers, it ends all waiting."""

    def __init__(self, job: Job, node_rank: int, store: Any, others: Store, tell: Callable[..., None]) -> None:
        """`others`: the connection of the rest of this process, which is given up with ours. `tell`: events for the stream."""
        self.key = "round/0/word"
        self._heard: Tuple[str, Optional[Verdict]] = (self.key, None)
        """With the key of its round: a verdict that comes late is never one of the next round."""

        self._loss: Optional[Verdict] = None
        """That of node 0, of which no store can tell any more."""

        self._job = job
        self._node_rank = node_rank
        self._store, self._others = store, others
        self._to_say: Optional[Verdict] = None
        self._beats = Beats(time.monotonic())
        self._load = ""
        """What node 0 has said of its machine."""

        self._event = tell
        self.drop: Optional[Callable[[str], None]] = None
        """In an elastic run on node 0: has the others go on without the node of that name."""

        if node_rank > 0:
            store.on_silence = (_QUIET * job.unreachable_s, self._of_node_0)
            self.be_missed("-")
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    @property
    def verdict(self) -> Optional[Verdict]:
        """The verdict of the present round; in place of none, or of a restart, that node 0 is lost."""
        key, verdict = self._heard
        if key != self.key:
            verdict = None
        return self._loss or verdict if verdict is None or verdict["kind"] == "restart" else verdict

    def hear(self, key: str, verdict: Verdict) -> None:
        """The verdict of the round with that key."""
        self._heard = (key, verdict)

    def begin(self, key: str, *, watch_beats: bool) -> None:
        """Listen for the verdict of a new round."""
        self.key = key
        self._beats.expected = watch_beats

    def say(self, verdict: Verdict) -> None:
        """Have the thread tell all nodes, where the caller must not wait for the store."""
        self._to_say = verdict

    def be_missed(self, name: str) -> None:
        """Have node 0 told when this node's connection ends, and under which name the others know this node."""
        self._store.set(f"name/{self._node_rank}", name)
        self._store.leave(f"gone/{self._node_rank}", f"ended {name}", f"unreachable {name}")

    def leave(self) -> None:
        """This node's part of the run is over: that its connection ends is no loss."""
        if self._node_rank > 0:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"left/{self._node_rank}", "")
                self._store.leave("", "", "")

    @property
    def has_to_say(self) -> bool:
        """Whether something is still to be told."""
        return self._to_say is not None

    def _run(self) -> None:
        beat_at = load_at = 0.0
        try:
            while True:
                key = self.key
                if self._to_say is not None:
                    tell_end(self._store, key, self._to_say)
                    self._to_say = None
                verdict, load = self._store.peek([key, "load/0"])
                self._load = load.decode() if load else ""
                if verdict is not None:
                    self.hear(key, json.loads(verdict))
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + _BEAT_S
                    self._store.add(f"beat/{self._node_rank}", 1)
                    if self._node_rank == 0:
                        self._check_beats(now)
                if now >= load_at:
                    load_at = now + _LOAD_S
                    self._store.set(f"load/{self._node_rank}", facts.load())
                if self._node_rank == 0:
                    self._look_for_gone()
                time.sleep(_WATCH_S)
        except StoreError as error:
            silent = _silent(0, self._job.peer_timeout_s, self._load, over=True)
            kinds: Dict[type, Verdict] = {UnreachableError: _unreachable(0, self._job), SilentError: _loss(0, silent)}
            self._loss = kinds.get(type(error), _gone(0))
            self._others.give_up()

    # -- on node 0 ----------------------------------------------------------------------------------------------------

    def _look_for_gone(self) -> None:
        """Whose connection has ended before the node's part of the run did."""
        nodes = range(1, self._job.max_nodes)
        for node, value in zip(nodes, self._store.peek([f"gone/{node}" for node in nodes])):
            how, _, name = (value or b"").decode().partition(" ")
            if not how:
                continue
            if not self._job.elastic:
                self._tell(_unreachable(node, self._job) if how == "unreachable" else _gone(node))
            elif self.drop is not None:
                self._store.set(f"gone/{node}", "")  # another may take its place
                self._store.compare_set(f"name/{node}", name, "")
                if how == "unreachable":
                    self._warn(_unreachable(node, self._job)["message"])
                self.drop(name)

    def _check_beats(self, now: float) -> None:
        limit_s = min(_QUIET * self._job.unreachable_s, self._job.peer_timeout_s)
        self._beats.look(now)
        for node in range(1, self._job.max_nodes):
            silent, again = self._beats.heard(node, self._store.add(f"beat/{node}", 0), now)
            if again:
                self._warn(_heard_again(node, silent))
            elif silent > limit_s:
                self._is_silent(node, silent)

    def _is_silent(self, node: int, silent: float) -> None:
        """It has said nothing for long, where it was to say something."""
        name, load, left = self._store.peek([f"name/{node}", f"load/{node}", f"left/{node}"])
        if left is not None or not name or not self._beats.expected:
            return
        over = silent > self._job.peer_timeout_s
        text = _silent(node, silent, load.decode() if load else "", over=over)
        if over and not self._job.elastic:
            self._tell(_loss(node, text))
        elif over or node not in self._beats.quiet:
            self._beats.quiet.add(node)
            self._warn(text)
            if over and self.drop is not None:
                self._store.set(f"name/{node}", "")
                self.drop(name.decode())

    def _tell(self, loss: Verdict) -> None:
        self._store.compare_set(self.key, "", json.dumps(loss))

    # -- what is said -------------------------------------------------------------------------------------------------

    def _of_node_0(self, silent: float, over: bool) -> None:
        """It does not answer, or does again; one of the others says so."""
        if self._node_rank == 1 or self._job.elastic:
            self._warn(_heard_again(0, silent) if over else _silent(0, silent, self._load, over=False))

    def _warn(self, message: str) -> None:
        self._event("warning", message=message)


def tell_end(store: Store, key: str, verdict: Verdict) -> None:
    """Tell all nodes of an end; those who are about to start again hear of it in the next round."""
    while json.loads(store.compare_set(key, "", json.dumps(verdict)))["kind"] == "restart":
        key = f"round/{int(key.split('/')[1]) + 1}/word"


def _silent(node: int, seconds: float, load: str, *, over: bool) -> str:
    limit, is_it = (" (--peer-timeout)", "was") if over else ("", "may be")
    why = f"it {is_it} starved of CPU or memory, or stopped" + (f"; last known there: {load}" if load else "")
    return f"no sign of node {node} for {seconds:.0f} s{limit}, though its host answers: {why}"


def _heard_again(node: int, seconds: float) -> str:
    return f"node {node} responds again, after {seconds:.0f} s"


def _unreachable(node: int, job: Job) -> Verdict:
    return _loss(node, f"node {node} has not answered for {job.unreachable_s:.0f} s: its host or the network is gone")


def _loss(node: int, message: str, **more: Any) -> Verdict:
    return {"kind": "lost", "node": node, "message": message, "time": time.time(), **more}


def _gone(node: int) -> Verdict:
    """It has ended, and why is better known on its host."""
    return _loss(node, f"the agent of node {node} is gone", secondary=True)
