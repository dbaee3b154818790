"""Watches the other nodes of a worker group and sends this node's heartbeats: one thread, on its own connection.

A node's process may be silent while its host is short of CPU or memory, and continue later. A lost host or network
shows in TCP, as the kernel of a host that is up acknowledges data even for a process that does not run.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Set, Tuple

from .. import roles
from ..job import Job
from ..store.interface import SilentError, Store, StoreError, UnreachableError
from ..system import facts
from .hangs import ACT
from .sampling import ASK
from .whole import Whole

if TYPE_CHECKING:
    from ..messages import Verdict

_WATCH_S = 0.2
_BEAT_S = 1.0
_LOAD_S = 5.0
_QUIET = 7 / 6
"""How many times its host's limit a node is silent before that is reported: by then, the host is known to answer."""

_STALL_S = 1.0
"""A node that checks this much too late was starved itself, and has missed heartbeats meanwhile."""


class Beats:
    """How long node 0 has received no heartbeat from each of the other nodes."""

    def __init__(self, now: float) -> None:
        self.expected = False
        """Whether the nodes should be sending heartbeats."""

        self.quiet: Set[int] = set()
        """Nodes that were reported as silent."""

        self._counts: Dict[int, int] = {}
        self._times: Dict[int, float] = {}
        self._looked_at = now

    def look(self, now: float) -> None:
        """Exclude the time in which this node was stalled; called before the nodes are checked one by one."""
        stalled, self._looked_at = now - self._looked_at - _BEAT_S, now
        if stalled > _STALL_S:
            self._times = {node: seen + stalled for node, seen in self._times.items()}

    def silence_of(self, node: int, count: int, now: float) -> Tuple[float, bool]:
        """How long a node with this many heartbeats is silent, or was until now; and whether it responds again."""
        silent = now - self._times.get(node, now)
        if count == self._counts.get(node):
            return silent, False
        self._counts[node], self._times[node] = count, now
        again = node in self.quiet
        self.quiet.discard(node)
        return (silent if again else 0.0), again


class Watch:
    """A thread that polls the store over its own connection. If the store stops answering, it ends all waits."""

    def __init__(self, job: Job, node_rank: int, store: Any, others: Store, tell: Callable[..., None]) -> None:
        """`others`: the connection of the rest of this process, given up with ours. `tell` writes events."""
        self.key = f"{roles.at(job, node_rank).prefix}round/0/verdict"
        self._received: Tuple[str, Optional[Verdict]] = (self.key, None)
        """The verdict, with the key of its round: a late one never counts for the next round."""

        self._loss: Optional[Verdict] = None
        """The loss of node 0, which no store can report any more."""

        self._job = job
        self._node_rank = node_rank
        self._store, self._others = store, others
        self._unpublished: Optional[Verdict] = None
        self._beats = Beats(time.monotonic())
        self._load = ""
        """The load that node 0 last published for its host."""

        self.whole = Whole(job, node_rank, tell)
        self.drop: Optional[Callable[[str], None]] = None
        """On node 0 of an elastic run: has the others continue without the node of that name."""

        if node_rank > 0:
            store.on_silence = (_QUIET * job.unreachable_s, self._of_node_0)
            self.be_missed("-")
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    @property
    def verdict(self) -> Optional[Verdict]:
        """The verdict of the current round; if that is none or a restart, the loss of node 0 comes first."""
        key, verdict = self._received
        if key != self.key:
            verdict = None
        return self._loss or verdict if verdict is None or verdict["kind"] == "restart" else verdict

    def receive(self, key: str, verdict: Verdict) -> None:
        """Record the verdict of the round with that key."""
        self._received = (key, verdict)

    def begin(self, key: str, *, watch_beats: bool) -> None:
        """Watch for the verdict of a new round."""
        self.key = key
        self._beats.expected = watch_beats

    def publish_soon(self, verdict: Verdict) -> None:
        """Have the thread publish a verdict, for a caller that must not wait for the store."""
        self._unpublished = verdict

    def be_missed(self, name: str) -> None:
        """Have node 0 learn when this node's connection closes, and the name by which the others know this node."""
        self._store.set(f"name/{self._node_rank}", name)
        self._store.leave(f"gone/{self._node_rank}", f"ended {name}", f"unreachable {name}")

    def leave(self) -> None:
        """Mark this node's part of the run as over: its closed connection is then not a loss."""
        if self._node_rank > 0:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"left/{self._node_rank}", "")
                self._store.leave("", "", "")

    @property
    def has_unpublished(self) -> bool:
        """Whether a verdict is still to be published."""
        return self._unpublished is not None

    def _run(self) -> None:
        beat_at = load_at = 0.0
        try:
            while True:
                key = self.key
                if self._unpublished is not None:
                    self.whole.publish_end(self._store, key, self._unpublished)
                    self._unpublished = None
                own, load, asked, act, *ends = self._store.peek([key, "load/0", ASK, ACT, *self.whole.keys])
                self._load = load.decode() if load else ""
                verdict = next(filter(None, (*ends, own)), None)
                if verdict is not None:
                    self.receive(key, json.loads(verdict))
                self.whole.hangs.attend(self._store, asked, act)
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
        """Handle nodes whose connection closed before their part of the run was over."""
        nodes = range(1, self._job.max_nodes)
        for node, value in zip(nodes, self._store.peek([f"gone/{node}" for node in nodes])):
            how, _, name = (value or b"").decode().partition(" ")
            if not how:
                continue
            if not self._job.elastic:
                self._tell(_unreachable(node, self._job) if how == "unreachable" else _gone(node))
            elif self.drop is not None:
                self._store.set(f"gone/{node}", "")  # another node may take its place
                self._store.compare_set(f"name/{node}", name, "")
                if how == "unreachable":
                    self._warn(_unreachable(node, self._job)["message"])
                self.drop(name)

    def _check_beats(self, now: float) -> None:
        limit_s = min(_QUIET * self._job.unreachable_s, self._job.peer_timeout_s)
        self._beats.look(now)
        for node in range(1, self._job.max_nodes):
            silent, again = self._beats.silence_of(node, self._store.add(f"beat/{node}", 0), now)
            if again:
                self._warn(_responds_again(node, silent))
            elif silent > limit_s:
                self._is_silent(node, silent)

    def _is_silent(self, node: int, silent: float) -> None:
        """Handle a node that has sent no heartbeat for too long, if it should have."""
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
        self.whole.publish_loss(self._store, self.key, loss)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _of_node_0(self, silent: float, over: bool) -> None:
        """Report that node 0 does not answer, or does again; in a fixed run, only node 1 reports it."""
        if self._node_rank == 1 or self._job.elastic:
            self._warn(_responds_again(0, silent) if over else _silent(0, silent, self._load, over=False))

    def _warn(self, message: str) -> None:
        self.whole.tell("warning", message=message)


def _silent(node: int, seconds: float, load: str, *, over: bool) -> str:
    limit, is_it = (" (--peer-timeout)", "was") if over else ("", "may be")
    why = f"it {is_it} starved of CPU or memory, or stopped" + (f"; last known there: {load}" if load else "")
    return f"no sign of node {node} for {seconds:.0f} s{limit}, though its host answers: {why}"


def _responds_again(node: int, seconds: float) -> str:
    return f"node {node} responds again, after {seconds:.0f} s"


def _unreachable(node: int, job: Job) -> Verdict:
    return _loss(node, f"node {node} has not answered for {job.unreachable_s:.0f} s: its host or the network is lost")


def _loss(node: int, message: str, *, secondary: bool = False) -> Verdict:
    verdict: Verdict = {"kind": "lost", "node": node, "message": message, "time": time.time()}
    if secondary:
        verdict["secondary"] = True
    return verdict


def _gone(node: int) -> Verdict:
    """The verdict on an agent that has exited; the cause is better known on its own host."""
    return _loss(node, f"the agent of node {node} has exited", secondary=True)
