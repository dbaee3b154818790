"""On node 0: which of the other nodes are silent or lost, and what follows from that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Collection, Dict, Optional, Set, Tuple

from ..job import Job
from ..store.interface import Store
from .whole import Whole

if TYPE_CHECKING:
    from ..messages import Verdict

QUIET = 7 / 6
"""How many times its host's limit a node is silent before that is reported: by then, the host is known to answer."""

_LOOK_S = 1.0
_STALL_S = 1.0
"""A node that checks this much too late was starved itself, and has missed signs of life meanwhile."""

_GATHER_S = 10.0
"""After a report of silent nodes, the next ones are gathered for this time: there may be a thousand."""


class Signs:
    """How long node 0 has received no sign of life from each of the other nodes."""

    def __init__(self, now: float) -> None:
        self.quiet: Set[int] = set()
        """Nodes that were reported as silent."""

        self._counts: Dict[int, int] = {}
        self._times: Dict[int, float] = {}
        self._looked_at = now

    def look(self, now: float) -> None:
        """Exclude the time in which this node was stalled; called before the nodes are checked one by one."""
        stalled, self._looked_at = now - self._looked_at - _LOOK_S, now
        if stalled > _STALL_S:
            self._times = {node: seen + stalled for node, seen in self._times.items()}

    def silence_of(self, node: int, count: int, now: float) -> Tuple[float, bool]:
        """How long a node that gave this many signs is silent, or was until now; and whether it responds again."""
        silent = now - self._times.get(node, now)
        if count == self._counts.get(node):
            return silent, False
        self._counts[node], self._times[node] = count, now
        again = node in self.quiet
        self.quiet.discard(node)
        return (silent if again else 0.0), again


class Reports:
    """What is reported of nodes that are silent, and respond again: one of them at once, many in one line."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._silent: Dict[int, Tuple[float, str]] = {}
        self._again: Dict[int, float] = {}
        self._next_at = 0.0

    def is_silent(self, node: int, seconds: float, load: str) -> None:
        """How long a node has been silent, and the load that was last known there."""
        self._silent[node] = seconds, load

    def responds(self, node: int, seconds: float) -> None:
        """A node that was reported responds again, after this time."""
        self._again[node] = seconds

    def tell(self, now: float) -> None:
        """Report what is due."""
        if now < self._next_at or not (self._silent or self._again):
            return
        self._next_at = now + _GATHER_S
        if self._silent:
            self._warn(_silences(self._silent))
        if self._again:
            self._warn(_responses(self._again))
        self._silent, self._again = {}, {}


class Losses:
    """Looks at all other nodes once in a while, in node 0's own process, and at once if a connection closes."""

    def __init__(self, job: Job, whole: Whole) -> None:
        self.expected = False
        """Whether the nodes should be giving signs of life."""

        self.drop: Optional[Callable[[str], None]] = None
        """In an elastic run: has the others continue without the node of that name."""

        self.highest: Callable[[], int] = lambda: job.max_nodes - 1
        """The highest number of a node: if nodes come by themselves, there may be more of them than places."""

        self._job, self._whole = job, whole
        self._signs, self._reports = Signs(time.monotonic()), Reports(self._warn)
        self._look_at = 0.0
        self._seen: Tuple[str, Optional[bytes]] = ("", None)
        """The round, and the number of closed connections, for which those were handled."""

    def attend(self, store: Store, key: str, gone: Optional[bytes]) -> None:
        """Do what is due. `key`: that of the round's verdict. `gone`: how many connections have closed."""
        if gone is not None and self._seen != (key, gone) and (self.drop is not None or not self._job.elastic):
            self._seen = (key, gone)
            self._look_for_gone(store, key)
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._look_for_silent(store, key, now)

    def _look_for_gone(self, store: Store, key: str) -> None:
        """Handle nodes whose connection closed before their part of the run was over."""
        nodes = range(1, self.highest() + 1)
        for node, value in zip(nodes, store.peek([f"gone/{node}" for node in nodes])):
            how, _, name = (value or b"").decode().partition(" ")
            if not how:
                continue
            if not self._job.elastic:
                self._publish(store, key, unreachable(node, self._job) if how == "unreachable" else gone_agent(node))
            elif self.drop is not None:
                store.set(f"gone/{node}", "")  # another node may take its place
                store.compare_set(f"name/{node}", name, "")
                if how == "unreachable":
                    self._warn(unreachable(node, self._job)["message"])
                self.drop(name)

    def _look_for_silent(self, store: Store, key: str, now: float) -> None:
        limit_s = min(QUIET * self._job.unreachable_s, self._job.peer_timeout_s)
        self._signs.look(now)
        nodes = range(1, self.highest() + 1)
        for node, sign in zip(nodes, store.peek([f"sign/{node}" for node in nodes])):
            count, _, load = (sign or b"0").decode().partition(" ")
            silent, again = self._signs.silence_of(node, int(count), now)
            if again:
                self._reports.responds(node, silent)
            elif silent > limit_s:
                self._is_silent(store, key, node, silent, load)
        self._reports.tell(now)

    def _is_silent(self, store: Store, key: str, node: int, silent: float, load: str) -> None:
        """Handle a node that has given no sign of life for too long, if it should have."""
        name, left = store.peek([f"name/{node}", f"left/{node}"])
        if left is not None or not name or not self.expected:
            return
        is_new = node not in self._signs.quiet
        self._signs.quiet.add(node)
        if silent <= self._job.peer_timeout_s:
            if is_new:
                self._reports.is_silent(node, silent, load)
            return
        text = silence(node, silent, load, over=True)
        if not self._job.elastic:
            self._publish(store, key, loss(node, text))
            return
        self._warn(text)
        if self.drop is not None:
            store.set(f"name/{node}", "")
            self.drop(name.decode())

    def _publish(self, store: Store, key: str, lost: Verdict) -> None:
        self._whole.publish_loss(store, key, lost)

    def _warn(self, message: str) -> None:
        self._whole.tell("warning", message=message)


def silence(node: int, seconds: float, load: str, *, over: bool) -> str:
    """What is reported of a node that is silent."""
    limit, is_it = (" (--peer-timeout)", "was") if over else ("", "may be")
    why = f"it {is_it} starved of CPU or memory, or stopped" + (f"; last known there: {load}" if load else "")
    return f"no sign of node {node} for {seconds:.0f} s{limit}, though its host answers: {why}"


def _silences(found: Dict[int, Tuple[float, str]]) -> str:
    """The same of one node or many."""
    if len(found) == 1:
        ((node, (seconds, load)),) = found.items()
        return silence(node, seconds, load, over=False)
    how_long = _span([seconds for seconds, _ in found.values()])
    why = "they may be starved of CPU or memory, or stopped"
    return f"no sign of {_counted(found)} for {how_long} s, though their hosts answer: {why}"


def _responses(found: Dict[int, float]) -> str:
    if len(found) == 1:
        return responds_again(*next(iter(found.items())))
    return f"{_counted(found)} respond again, after {_span(found.values())} s"


def _span(seconds: Collection[float]) -> str:
    return " to ".join(dict.fromkeys(f"{each:.0f}" for each in (min(seconds), max(seconds))))


def _counted(nodes: Collection[int]) -> str:
    from ..system.folding import counted  # in few runs several nodes are silent

    return counted(nodes, "node")


def responds_again(node: int, seconds: float) -> str:
    """What is reported of a node that was silent."""
    return f"node {node} responds again, after {seconds:.0f} s"


def unreachable(node: int, job: Job) -> Verdict:
    """The verdict on a host that does not answer."""
    return loss(node, f"node {node} has not answered for {job.unreachable_s:.0f} s: its host or the network is lost")


def loss(node: int, message: str, *, secondary: bool = False) -> Verdict:
    """The verdict on a lost node."""
    verdict: Verdict = {"kind": "lost", "node": node, "message": message, "time": time.time()}
    if secondary:
        verdict["secondary"] = True
    return verdict


def gone_agent(node: int) -> Verdict:
    """The verdict on an agent that has exited; the cause is better known on its own host."""
    return loss(node, f"the agent of node {node} has exited", secondary=True)
