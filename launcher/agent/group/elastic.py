"""Rendezvous of an elastic run: any number of nodes from `min_nodes` to `max_nodes`; node 0 gives them their places."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from ..contracts import load
from ..network import routes
from ..ranks import from_runs
from ..store.interface import Known, Prefixed, Store, is_met
from . import places
from .errors import NotNeededError, RendezvousError, StopRequestedError
from .nodes import PATIENCE_S, Members, Nodes, Round
from .places import Place, Places

if TYPE_CHECKING:
    from ..messages import Cause, Verdict

_EXPLORE_S = 30.0
"""How long a round waits for all nodes to probe one another, and for the master's address."""

_MEETINGS = 5
"""How many times in a row nodes meet before they give up."""

_VERDICT = "final/verdict"


class ElasticNodes(Nodes):
    """Dynamic rendezvous: nodes come and go, and meet in a new round each time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.own_addr = self.job.master_addr or routes.towards(self.master_addr)[1] or self.master_addr
        self._name = f"{self.node_rank}-{os.urandom(8).hex()}"
        self._places: Optional[Places] = None
        self._watch.begin(_VERDICT, expects_signs=False)
        if self.node_rank == 0:
            self._places = given = Places(self.job, self.store)
            self._watch.losses.drop, self._watch.losses.highest = given.lose, lambda: given.highest
        self._asks = True
        """Whether this node waits for its place in the next round."""

    def next_rendezvous(self, workers: int) -> Round:
        """Meet the other nodes in the next round, this one with `workers` workers; its rank 0 chooses the port.

        A node may be lost between the rendezvous and the start of the workers. The others then meet once more, as their
        workers would wait for it in vain. Raises `RendezvousError` if that does not help.
        """
        for _ in range(_MEETINGS):
            place = self._take_place(workers)
            self.round, counts = place.round, from_runs(place.workers)
            self._watch.begin(_VERDICT, expects_signs=True)
            self.members = Members(Prefixed(f"round/{self.round}", self.store), len(counts), self._finish)
            try:
                master = self._agree(place.rank)
            except RendezvousError as error:
                self._tell("warning", message=f"{error}; the nodes meet once more")
                continue
            self.network.master_port.serves_workers = master["serves"]
            return Round(counts, master["addr"], master["port"], place.rank)
        raise RendezvousError(f"in {_MEETINGS} rounds in a row a node was lost before its workers started")

    def _take_place(self, workers: int) -> Place:
        """Ask for a place in the next round, and wait for it; reports the wait."""
        key, known = places.key_of_answer(self._ask(workers)), None
        began, told = time.monotonic(), False
        while True:
            waited = time.monotonic() - began
            limit_s = self.job.unreachable_s if known in places.FOR_LONG else self.job.rdzv_timeout_s - waited
            pause_s = limit_s if told else min(limit_s, PATIENCE_S - waited)
            found, closed = self._wait_for({key: known, places.CLOSED: None}, pause_s)
            answer = found.decode() if found else None
            if closed is not None:
                raise NotNeededError
            if self._is_to_stop():
                raise StopRequestedError
            if answer == places.AGAIN:
                key, answer = places.key_of_answer(self._ask(workers)), None
            elif answer is not None and answer not in (*places.FOR_LONG, places.WAIT):
                self._asks = False
                return Place(*json.loads(answer))
            if answer != known:
                known, began, told = answer, time.monotonic(), False
                continue
            told = self._tell_wait(known, time.monotonic() - began, told=told)

    def _ask(self, workers: int) -> int:
        """Ask for a place; the number of the request. From now on this node is missed if it is lost."""
        store, self._asks = self.store, True
        if self.node_rank > 0:
            self._watch.be_missed(self._name)
        number: int = store.add(places.NUMBERED, 1)
        store.set(places.key_of_ask(number), json.dumps([number, self.node_rank, self._name, workers]))
        store.add(places.ASKED, 1)
        return number

    def _tell_wait(self, known: Optional[str], waited: float, *, told: bool) -> bool:
        """Report the wait for a place if that is due; whether it was reported. Raises `RendezvousError` at its end."""
        limit_s, enough = self.job.rdzv_timeout_s, self.job.min_nodes
        if waited < min(PATIENCE_S, limit_s) or (told and (known in places.FOR_LONG or waited < limit_s)):
            return told
        if known in places.FOR_LONG:
            why = f"the run has its {self.job.max_nodes} nodes" if known == places.FULL else "a node has finished"
            self._tell("waiting", what=f"a place: {why}")
            return True
        (text,) = self.store.peek([places.THERE])
        there = max(1, int(text or 1))
        if waited >= limit_s:
            why = f"{enough} nodes: fewer have come" if there < enough else "a place: no round has followed"
            raise RendezvousError(f"waited {limit_s:.0f} s for {why}")
        if there < enough:
            what = f"{enough} nodes, of which {there} {'is' if there == 1 else 'are'} there"
            self._tell("waiting", what=what, limit_s=limit_s)
        return True

    def _agree(self, rank: int) -> Dict[str, Any]:
        """Probe the addresses of this round's nodes, and agree on where the workers meet."""
        store = self.members.store
        address = self._explore(rank) or self.own_addr
        if rank == 0:
            opened = self.network.master_port.open(self.round, torch=load(self.job.contract).torch)
            store.set("master", json.dumps({"addr": address, **opened}))
        (master,) = self._await_round("the master's address of this round", store, {"master": None}, list)
        found: Dict[str, Any] = json.loads(master or b"")
        return found

    def _await_round(
        self, what: str, store: Store, known: Mapping[str, Known], missing: Callable[[], List[str]]
    ) -> List[Optional[bytes]]:
        """`_await`, but raises `RendezvousError` once a node of the round is lost."""
        *values, again = self._await(what, store, {**known, "again": places.BROKEN}, missing, limit_s=_EXPLORE_S)
        if is_met(again, places.BROKEN):
            raise RendezvousError("a node of this round was lost, or has ended its workers")
        return values

    def _explore(self, rank: int) -> Optional[str]:
        """Probe the addresses of this round's nodes; this node's best address that all of them reach."""
        if self.network.fabric is None:
            return None
        from . import exploring

        own: Dict[str, str] = self.network.fabric["interfaces"]
        nodes, usable = self.members.count, []
        if nodes > 1:
            usable = exploring.explore(self.members.store, rank, nodes, list(own), self._await_round).usable
        interfaces = list(dict.fromkeys(own[address] for address in usable))
        why = f"all {nodes - 1} peers reach this node at"
        if not interfaces:
            interfaces, why = list(filter(None, [routes.towards(self.master_addr)[0]])), "the way to node 0 is"
        self.network.settle(interfaces, why)
        return usable[0] if usable and not self.job.master_addr else None

    def restart_requested(self) -> bool:
        """Whether all nodes must meet again: a new one is there, or one is lost, or its workers have failed."""
        return self._watch.has_reached(f"round/{self.round}/again", places.JOINED)

    def request_restart(self) -> None:
        """Have all nodes meet again, even those that have finished. The restarts of each node are counted apart."""
        self.members.store.set("outcome", "again")
        self.restarts += 1

    def finished(self) -> bool:
        """As in the base class, but False if this round was given up first: this node then meets the others again."""
        if not self.members.has_finished:
            fate = self.members.store.compare_set("outcome", "", "ends")
            if fate == b"again":
                return False
        return super().finished()

    def _finish(self) -> None:
        """Count this node as finished; only then it can be lost without another round."""
        self.members.store.add("finished", 1)
        self.store.set(places.key_of_end(self.round, self._name), "")

    def publish_failure(self, cause: Cause) -> Verdict:
        """As in the base class; but once a round has begun, the others continue without a node that was in none."""
        if self.round < 0 and self.store.check([places.BEGUN]):
            self.stopping.unannounced = True
            return {"kind": "fail", "node": self.node_rank, "host": self.host, "cause": cause}
        return super().publish_failure(cause)

    def _expected(self) -> int:
        count = (self.members.count if self.round >= 0 else 0) + (self._places.waiting if self._places else 0)
        return max(count, self.job.min_nodes) if self._has_failed_early() else count

    def _arrived(self, more: int) -> int:
        """As in the base class; a node that waits for a place is counted with those that never had one.

        It is not expected if it leaves the others.
        """
        number = max(self.round, 0)
        part = Prefixed(f"round/{number}", self.store)
        mine, other = (self.store, part) if self._asks else (part, self.store)
        if more and (self.stopping.unannounced if self._asks else not places.leaves(self.store, number, self._name)):
            more = 0
        return int(mine.add("shutdown", more)) + int(other.add("shutdown", 0))

    def ended(self) -> Optional[Verdict]:
        """The verdict of a run that was over before this node joined; None: it succeeded."""
        (verdict,) = self.store.peek([_VERDICT])
        return json.loads(verdict) if verdict else None

    def set_closed(self) -> None:
        """Mark the run as over: no round follows."""
        self.store.set(places.CLOSED, "")
