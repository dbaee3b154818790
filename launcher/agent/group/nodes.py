"""One node's part in a multi-node run: the shared store, the verdict of a round, and the shutdown."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from .. import roles
from ..job import Job
from ..named_tuple import NamedTuple
from ..store.interface import Known, Store, is_met
from .errors import RendezvousError, StopRequestedError
from .watch import Watch
from .whole import Whole, after_restarts
from .workers_network import WorkersNetwork

if TYPE_CHECKING:
    from ..messages import AgentToGroup, Cause, Verdict

Tell = Callable[..., None]

POLL_S = 0.005
PATIENCE_S = 2.0
"""A shorter wait for other nodes is not reported."""

_BARRIER_S = 3.0
_BARRIER_AFTER_SUCCESS_S, _BARRIER_EACH_S = 10.0, 0.05
"""The same limit after a success, and more for each node: none is known to be lost, and some may be starved of CPU."""

_LATE_S = 30.0
"""The same limit if a node has failed before all have met: the others may be starting, and would wait for node 0."""

LOST_S = 2.0
_RECORDED_S = 1.0
"""How much later node 0 exits if a scheduler takes its exit for the run's: the others' exits are on record by then."""


class StopEvent(threading.Event):
    """Set once this node is to stop its workers."""

    def __init__(self) -> None:
        super().__init__()
        self.by_agent = False
        """Whether this node's own agent stops the run."""

        self.leaves = False
        """Whether this node ends once its own workers have succeeded, while the others continue."""

        self.unannounced = False
        """Whether this node stops and the others continue: they have to notice that it is gone."""


class Members:
    """The nodes of one round, and the part of the store that they share."""

    def __init__(self, store: Store, count: int, finish: Optional[Callable[[], object]] = None) -> None:
        """`finish` counts this node as finished."""
        self.store, self.count = store, count
        self._finish = finish or (lambda: store.add("finished", 1))
        self.has_finished = False
        """Whether this node's workers have succeeded."""

    def all_finished(self, has_reached: Callable[[str, int], bool]) -> bool:
        """Count this node's workers as succeeded; whether those of all nodes have, as `Watch.has_reached` knows."""
        if not self.has_finished:
            self.has_finished = True
            self._finish()
        return has_reached(self.store.name_of("finished"), self.count)


class Round(NamedTuple):
    """What the nodes have agreed on for one round."""

    workers: List[int]
    """How many workers each node has, by node rank."""

    master_addr: str
    master_port: int
    rank: int
    """This node's."""


class Nodes:
    """What fixed and elastic runs have in common: the store, the verdict of a round and the end of the run."""

    def __init__(self, job: Job, node_rank: int, host: str, master_addr: str, store: Any, tell: Tell) -> None:
        self.job = job
        self.master_addr = master_addr
        self.node_rank = node_rank
        self.host = host
        self.store = store
        self.round = -1
        self.restarts = 0
        self.stopping = StopEvent()
        self.network = WorkersNetwork(job, tell)
        self.members = Members(store, job.max_nodes)
        self._tell = tell
        self._watch = Watch(job, node_rank, store, tell)

    @property
    def role(self) -> roles.Role:
        """The node's role."""
        return roles.at(self.job, self.node_rank)

    @property
    def rank(self) -> int:
        """The node's rank among those of its role."""
        return self.node_rank - self.role.first

    @property
    def whole(self) -> Whole:
        """The run, of which this group is a part."""
        return self._watch.whole

    def set_closed(self) -> None:
        """Mark the run as over: nodes that join from now on are not needed."""

    def publish(self, kind: str, **about: Any) -> Verdict:
        """Publish a verdict to all nodes; the first one of a round counts, and is returned."""
        key, verdict = self._watch.key, json.dumps({"kind": kind, "node": self.node_rank, "host": self.host, **about})
        stands: Verdict = json.loads(self.store.compare_set(key, "", verdict))
        stands = self.whole.hand_on(self.store, stands)
        self._watch.receive(key, stands)
        return stands

    def publish_failure(self, cause: Cause) -> Verdict:
        """End the run on all nodes; if they are about to restart, in the next round. Returns what stands."""
        stands = self.publish("fail", cause=cause)
        if stands["kind"] == "restart":
            verdict: Verdict = {"kind": "fail", "node": self.node_rank, "host": self.host, "cause": cause}
            stands = self.whole.hand_on(self.store, after_restarts(self.store, self._watch.key, verdict))
        return stands

    def publish_loss(self, cause: Cause) -> bool:
        """Report to all nodes that this one is lost; whether that ends the run."""
        if self.whole.is_ignored(self.store, self.node_rank):
            self.whole.explain_loss(self.store, self.node_rank, cause["message"])
            return False
        verdict: Verdict = {"kind": "lost", "node": self.node_rank, "host": self.host, "cause": cause}
        self.whole.publish_end(self.store, self._watch.key, verdict)
        return True

    def request_stop(self, message: AgentToGroup) -> None:
        """Stop the run on all nodes: waits end and no restart follows. Or let this node alone leave the run."""
        if message.get("done"):
            self.stopping.leaves = True
            return
        self.stopping.by_agent = True
        self.stopping.unannounced = message["leaves"]
        self.stopping.set()
        self.store.wake()
        if not message["leaves"]:
            verdict: Verdict = {"kind": "stop", "node": self.node_rank, "host": self.host, "stop": message["stop"]}
            verdict["left_s"], verdict["signal"] = message["deadline"] - time.time(), message["signal"]
            self._watch.publish_soon(verdict)

    @property
    def verdict(self) -> Optional[Verdict]:
        """The verdict of this round, if there is one; a lost node counts as one."""
        return self._watch.verdict

    def next_rendezvous(self, workers: int) -> Round:
        """Meet the other nodes in the next round, this one with `workers` workers. Raises `RendezvousError`."""
        raise NotImplementedError

    def exchange(self, offer: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Tell the nodes of a round what this one offers. Elastic runs have no contract that needs it."""
        raise NotImplementedError

    def restart_requested(self) -> bool:
        """Whether all nodes are to stop their workers and meet in another round."""
        raise NotImplementedError

    def meet(self, offer: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Tell the nodes of all roles what this one offers; what each does. Runs with roles have fixed nodes."""
        raise NotImplementedError

    def finished(self) -> bool:
        """Record that this node's workers have succeeded; whether those of all nodes of the round have."""
        return self.members.all_finished(self._watch.has_reached)

    def request_restart(self) -> None:
        """Have all nodes restart after workers of this node have failed, even nodes that have finished."""

    def verdict_on_loss(self) -> Optional[Verdict]:
        """The verdict that explains why the store does not answer; the watch has it a moment later."""
        limit = time.monotonic() + LOST_S
        while self.verdict is None and time.monotonic() < limit:
            time.sleep(POLL_S)
        return self.verdict

    def _await(
        self,
        what: str,
        store: Store,
        known: Mapping[str, Known],
        missing: Callable[[], List[str]],
        limit_s: Optional[float] = None,
    ) -> List[Optional[bytes]]:
        """Wait until a key of this part of the store is not as known, as `Store.wait` does; the values of the keys.

        Reports the wait. Raises at the limit, on a stop and on the verdict of a failure.
        """
        began, told = time.monotonic(), False
        limit_s = self.job.rdzv_timeout_s if limit_s is None else limit_s
        keys = {store.name_of(key): each for key, each in known.items()}
        while True:
            waited = time.monotonic() - began
            values = self._wait_for(keys, (limit_s if told else min(limit_s, PATIENCE_S)) - waited)
            if any(map(is_met, values, keys.values())):
                return values
            if self._is_to_stop():
                raise StopRequestedError
            waited = time.monotonic() - began
            if waited >= limit_s:
                raise RendezvousError(f"waited {waited:.0f} s for {what}{_named(missing(), '; missing: node {}')}")
            if waited >= PATIENCE_S and not told:
                told = True
                self._tell("waiting", what=what + _named(missing(), " (missing: node {})"), limit_s=limit_s)

    def _is_to_stop(self) -> bool:
        """Whether nothing is worth waiting for any more."""
        verdict = self.verdict
        return self.stopping.is_set() or (verdict is not None and verdict["kind"] != "restart")

    def _wait_for(self, keys: Mapping[str, Known], limit_s: float) -> List[Optional[bytes]]:
        """The values of the keys, once one is not as known, there is a verdict or a stop, or some time has passed."""
        verdicts = self._watch.verdicts()
        limit_s = 0.0 if self._is_to_stop() else max(0.0, min(limit_s, self.job.unreachable_s))
        values: List[Optional[bytes]] = self.store.wait({**keys, **verdicts}, limit_s)
        self._watch.learn(dict(zip(verdicts, values[len(keys) :])))
        return values[: len(keys)]

    def _expected(self) -> int:
        """The number of nodes to wait for in the shutdown barrier."""
        return self.whole.nodes_left(self.store) if self.job.roles else self.members.count

    def all_succeeded(self) -> bool:
        """Whether the workers of all nodes have succeeded, although this node's own loop has not noticed."""
        return False

    def shutdown_barrier(self, *, reported: bool, succeeded: bool) -> None:
        """Node 0 serves its store until all nodes arrive, for at most 3 s, or after a success 10 s and 50 ms per node.

        Nodes that have not met yet have 30 s to come and learn of a failure.
        `reported`: the others know that this node exits. `succeeded`: the workers of all nodes have.
        """
        after_success_s = _BARRIER_AFTER_SUCCESS_S + _BARRIER_EACH_S * self.job.max_nodes
        limit_s = after_success_s if succeeded else _LATE_S if self._has_failed_early() else _BARRIER_S
        limit = time.monotonic() + limit_s
        leaves = self.stopping.unannounced and not succeeded
        if succeeded or (reported and not (self.job.elastic or leaves)):  # else its closed connection has to be noticed
            self._watch.leave()
        while self._watch.has_unpublished and time.monotonic() < limit:
            time.sleep(POLL_S)
        try:
            seen = self._arrived(0 if leaves and self.job.roles else 1)
            if self.node_rank == 0:
                self._wait_for_all(seen, limit)
        except RuntimeError:  # the connection to the store is lost: no node is left to wait for
            pass
        several = (self.job.max_nodes if self.job.roles else self.members.count) > 1
        if succeeded and self.node_rank == 0 and several and self.job.replaces_lost:
            self.stopping.wait(_RECORDED_S)

    def _has_failed_early(self) -> bool:
        """Whether a node has ended the run before all had met."""
        verdict = self.verdict
        return self.members.store is self.store and verdict is not None and verdict["kind"] == "fail"

    def _wait_for_all(self, seen: int, limit: float) -> None:
        """Wait until all nodes have arrived, of which `seen` have; reports the wait for some that were never here."""
        told = not self._has_failed_early()
        tell_at = time.monotonic() + PATIENCE_S
        while seen < self._expected() and time.monotonic() < limit:
            if not told and time.monotonic() > tell_at:
                told = True
                what = f"{self._expected()} nodes to learn that the run has failed, of which {seen} have"
                self._tell("waiting", what=what, limit_s=round(limit - time.monotonic()))
            time.sleep(POLL_S)
            seen = self._arrived(0)

    def _arrived(self, more: int) -> int:
        """Add to the barrier's count; the count of this round's nodes, and of those that joined no round.

        Earlier rounds do not count: other nodes have taken the places of those that were lost then.
        """
        where = self.store if self.job.roles else self.members.store
        seen = int(where.add("shutdown", more))
        return seen if where is self.store else seen + int(self.store.add("shutdown", 0))


def _named(nodes: List[str], text: str) -> str:
    """The text with the nodes; empty if there are none."""
    from ..system.folding import folded  # few rounds wait for long

    return text.format(folded(nodes)) if nodes else ""
