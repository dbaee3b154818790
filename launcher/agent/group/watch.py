"""Watches the other nodes of a worker group and gives signs of life: one thread, on the node's only connection.

It waits for verdicts: the store answers at once when there is one, and otherwise only when the next sign is due. So a
run without failures costs each node one call every few seconds, however many nodes there are.

A node's process may be silent while its host is short of CPU or memory, and continue later. A lost host or network
shows in TCP, as the kernel of a host that is up acknowledges data even for a process that does not run.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Set, Tuple

from .. import roles
from ..job import Job
from ..store.interface import GONE, Known, SilentError, StoreError, UnreachableError, is_met
from ..system import facts
from .hangs import ACT
from .losses import QUIET, Losses, gone_agent, loss, responds_again, silence, unreachable
from .sampling import ASK
from .whole import Whole

if TYPE_CHECKING:
    from ..messages import Verdict

_SIGNS = 5
"""How many signs of life a node gives in the time after which a silent host is lost."""

_OF_NODE_0 = "sign/0"


class Watch:
    """A thread that waits for the store. If that stops answering, all calls of this process fail, with its reason."""

    def __init__(self, job: Job, node_rank: int, store: Any, tell: Callable[..., None]) -> None:
        """`tell` writes events."""
        self.key = f"{roles.at(job, node_rank).prefix}round/0/verdict"
        self._received: Dict[str, Verdict] = {}
        """The verdicts, by the keys of their rounds: a late one, which any thread may receive, counts for its own."""

        self._loss: Optional[Verdict] = None
        """The loss of node 0, which no store can report any more."""

        self._job, self._node_rank = job, node_rank
        self._store = store
        self._unpublished: Optional[Verdict] = None
        self._signs = Signs(node_rank, job.unreachable_s / _SIGNS)
        self._keys = Keys()
        self.whole = Whole(job, node_rank, tell)
        self.whole.hangs.wake = store.wake
        self.losses = Losses(job, self.whole)
        """Used on node 0."""

        if node_rank > 0:
            store.tell_silence(QUIET * job.unreachable_s, self._of_node_0)
            self.be_missed("-")
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    @property
    def verdict(self) -> Optional[Verdict]:
        """The verdict of the current round; if that is none or a restart, the loss of node 0 comes first."""
        verdict = self._received.get(self.key)
        return self._loss or verdict if verdict is None or verdict["kind"] == "restart" else verdict

    def receive(self, key: str, verdict: Verdict) -> None:
        """Record the verdict of the round with that key."""
        self._received[key] = verdict

    def begin(self, key: str, *, expects_signs: bool) -> None:
        """Watch for the verdict of a new round."""
        self.losses.expected = expects_signs
        self._keys.wanted.clear()
        if key != self.key:
            self.key = key
            self._store.wake()

    def publish_soon(self, verdict: Verdict) -> None:
        """Have the thread publish a verdict, for a caller that must not wait for the store."""
        self._unpublished = verdict
        self._store.wake()

    def has_reached(self, key: str, count: int) -> bool:
        """Whether a number in the store is as high; from the first call on, the thread waits for that."""
        keys = self._keys
        if key not in keys.reached and key not in keys.wanted:
            if int(self._store.add(key, 0)) >= count:
                keys.reached.add(key)
            else:
                keys.wanted[key] = count
                self._store.wake()
        return key in keys.reached

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

    # -- waiting ------------------------------------------------------------------------------------------------------

    def verdicts(self) -> Dict[str, Known]:
        """The keys of verdicts that this node waits for, and what is known of them."""
        return {key: self._keys.known.get(key) for key in (*self.whole.keys, self.key)}

    def learn(self, values: Mapping[str, Optional[bytes]]) -> None:
        """Take the values of the keys of `verdicts`, which any thread may have got; the run's own come first."""
        *_, own = values
        self._keys.take(values)
        verdict = next(filter(None, values.values()), None)
        if verdict is not None:
            self.receive(own, json.loads(verdict))

    def _run(self) -> None:
        try:
            while True:
                key = self.key
                if self._unpublished is not None:
                    self.whole.publish_end(self._store, key, self._unpublished)
                    self._unpublished = None
                gone = self._wait()
                if self._node_rank == 0:
                    self.losses.attend(self._store, key, gone)
        except StoreError as error:
            silent = silence(0, self._job.peer_timeout_s, self._load_of_node_0, over=True)
            kinds: Dict[type, Verdict] = {UnreachableError: unreachable(0, self._job), SilentError: loss(0, silent)}
            self._loss = kinds.get(type(error), gone_agent(0))
            self._store.give_up()

    def _wait(self) -> Optional[bytes]:
        """Wait until there is something to do, or a sign is due; the number of connections that have closed."""
        verdicts, known = self.verdicts(), self._keys.known
        more: Dict[str, Known] = {GONE: known.get(GONE)} if self._node_rank == 0 else {_OF_NODE_0: False}
        keys = {**verdicts, ASK: known.get(ASK), ACT: known.get(ACT), **more, **self._keys.wanted}
        limit_s, sign = self._signs.next(time.monotonic())
        limit_s = min(limit_s, self.whole.hangs.patience_s())
        values = dict(zip(keys, self._store.wait(keys, limit_s, sign)))
        self.learn({key: values[key] for key in verdicts})
        self._keys.take(values)
        self.whole.hangs.attend(self._store, values[ASK], values[ACT])
        return values.get(GONE)

    # -- reports ------------------------------------------------------------------------------------------------------

    @property
    def _load_of_node_0(self) -> str:
        """The load that node 0 last published for its host."""
        return (self._keys.known.get(_OF_NODE_0) or "").partition(" ")[2]

    def _of_node_0(self, silent: float, over: bool) -> None:
        """Report that node 0 does not answer, or does again; in a fixed run, only node 1 reports it."""
        if self._node_rank == 1 or self._job.elastic:
            text = responds_again(0, silent) if over else silence(0, silent, self._load_of_node_0, over=False)
            self.whole.tell("warning", message=text)


class Signs:
    """The signs of life that this node gives: a number that changes, and the load of its host."""

    def __init__(self, node_rank: int, every_s: float) -> None:
        self._key, self._every_s = f"sign/{node_rank}", every_s
        self._count, self._due_at = 0, 0.0

    def next(self, now: float) -> Tuple[float, Tuple[str, str]]:
        """The seconds until the next sign after this one is due; the key and value of this one, empty if it is not."""
        if now < self._due_at:
            return self._due_at - now, ("", "")
        self._count, self._due_at = self._count + 1, now + self._every_s
        return self._every_s, (self._key, f"{self._count} {facts.load()}")


class Keys:
    """What is known of the keys that this node waits for."""

    def __init__(self) -> None:
        self.known: Dict[str, Optional[str]] = {}
        """Their values, as they were last known."""

        self.wanted: Dict[str, int] = {}
        """Numbers that are waited for: how high they are to be."""

        self.reached: Set[str] = set()
        """Those that were as high."""

    def take(self, values: Mapping[str, Optional[bytes]]) -> None:
        """Take these values, in any thread."""
        for key, value in values.items():
            self.known[key] = None if value is None else value.decode()
            count = self.wanted.get(key)  # which the next round's beginning may remove meanwhile
            if count is not None and is_met(value, count):
                self.reached.add(key)
                self.wanted.pop(key, None)
