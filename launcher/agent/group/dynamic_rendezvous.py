"""The nodes of an elastic run: torchelastic's dynamic rendezvous, with our master port, addresses and shutdown."""

from __future__ import annotations

import base64
import json
import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ..network import routes
from ..store.interface import Prefixed, Store, StoreError
from . import torchelastic
from .errors import RendezvousError
from .nodes import Members, Nodes

if TYPE_CHECKING:
    from ..messages import Verdict

_EXPLORE_S = 30.0
"""How long an elastic round waits for all nodes to probe one another, and for the master's address."""

_SAY_SO_S = 2.0
"""How long a rendezvous waits before it reports what it waits for."""

_MEETINGS = 5
"""How many times in a row elastic nodes meet before they give up."""

_MORE_COME_S = 3.0
"""How long later rounds wait for more nodes: all running nodes poll once a second, and have joined by then."""


class _Backend(torchelastic.RendezvousBackend):
    """torchelastic's state in our store: a pickle, which only holders of the run's key can write."""

    name = "distlaunch"
    _key = "rendezvous"

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_state(self) -> Optional[Tuple[bytes, Any]]:
        """The state with its token, which is the text in the store."""
        try:
            return _state(self._store.peek([self._key])[0])
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error

    def set_state(self, state: bytes, token: Any = None) -> Optional[Tuple[bytes, Any, bool]]:
        """Set the state if the token is still current; the resulting state and token, and whether they are ours."""
        wanted = base64.b64encode(state).decode()
        try:
            found = _state(self._store.compare_set(self._key, token or "", wanted))
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error
        return None if found is None else (*found, found[1] == wanted)


def _state(text: Optional[bytes]) -> Optional[Tuple[bytes, str]]:
    return (base64.b64decode(text), text.decode()) if text else None


class ElasticNodes(Nodes, RendezvousHandler):
    """Dynamic rendezvous: any number of nodes from `min_nodes` to `max_nodes`; torchelastic decides rank and round."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.own_addr = self.job.master_addr or routes.towards(self.master_addr)[1] or self.master_addr
        last_call = _MORE_COME_S if self.store.check(["met"]) else self.job.last_call_s
        join = timedelta(seconds=self.job.rdzv_timeout_s)
        handler = torchelastic.DynamicRendezvousHandler.from_backend(
            run_id=self.job.run,
            store=self.store,
            backend=_Backend(self.store),
            min_nodes=self.job.min_nodes,
            max_nodes=self.job.max_nodes,
            local_addr=self.own_addr,
            timeout=torchelastic.RendezvousTimeout(join=join, last_call=timedelta(seconds=last_call)),
        )
        self._dynamic = torchelastic.Rendezvous(handler, self.store, self.own_addr, self._part_of_round)
        if self.node_rank == 0:
            self._watch.losses.drop = self._drop
        else:
            self._watch.be_missed(self._dynamic.name)
        self.own_workers = 0
        """The number of workers on this node."""

        self.counts: List[int] = []
        """The number of workers on each node of the round, by node rank."""

    def get_backend(self) -> str:
        """torchelastic's name for the backend."""
        return "c10d"

    def _drop(self, name: str) -> None:
        """Have torch consider the node of that name lost, on all nodes."""
        backend = _Backend(self.store)
        found = backend.get_state()
        while found is not None:
            state = torchelastic.without(found[0], name)
            if state is None:
                return
            answer = backend.set_state(state, found[1])
            found = None if answer is None or answer[2] else answer[:2]

    def _part_of_round(self, number: int) -> Store:
        """The part of the store for the round that torchelastic has just agreed on."""
        return Prefixed(f"round/{number}", self.store)

    def next_rendezvous(self) -> RendezvousInfo:
        """Complete torchelastic's rendezvous, with the master port chosen as in fixed runs.

        A node may be lost silently between the rendezvous and the start of the workers. The others then meet once more,
        as their workers would wait for it in vain. Raises `RendezvousError` if that does not help.
        """
        for _ in range(_MEETINGS):
            info = self._meet()
            self.round += 1
            self._watch.begin("final/verdict", expects_signs=True)
            try:
                info.store.set(f"workers/{info.rank}", str(self.own_workers))
                info.store.add("workers/told", 1)
                address = self._explore(info) or self.own_addr
                if info.rank == 0:
                    info.store.set(
                        "distlaunch/master", json.dumps({"addr": address, **self.network.master_port.open(self.round)})
                    )
                self._await_told(info)
            except RendezvousError as error:
                self._tell("warning", message=f"{error}; the nodes meet once more")
                continue
            self.store.set("met", "")
            self._dynamic.wait_for_more(_MORE_COME_S)
            self._who = self._dynamic.participants
            self.members = Members(Prefixed("distlaunch", info.store), info.world_size)
            counts = info.store.multi_get([f"workers/{rank}" for rank in range(info.world_size)])
            self.counts = [int(count) for count in counts]
            master = json.loads(info.store.get("distlaunch/master"))
            self.network.master_port.serves_workers = master["serves"]
            store_info = RendezvousStoreInfo(master["addr"], master["port"])
            return RendezvousInfo(info.store, info.rank, info.world_size, store_info)
        raise RendezvousError(f"in {_MEETINGS} rounds in a row a node was lost before its workers started")

    def _await_told(self, info: RendezvousInfo) -> None:
        """Wait until all nodes of the round have told what the others need."""
        store: Any = info.store
        size = info.world_size
        self._await("all nodes' numbers of workers", store, {"workers/told": size}, list, limit_s=_EXPLORE_S)
        what = "the master's address of this round"
        self._await(what, store, {"distlaunch/master": None}, list, limit_s=_EXPLORE_S)

    def _meet(self) -> Any:
        """Complete torchelastic's part, and report what it waits for, which torchelastic does not."""
        enough, limit_s = self.job.min_nodes, self.job.rdzv_timeout_s

        def tell() -> None:
            there = max(1, len(self._dynamic.participants))  # includes this node, even before its state has arrived
            if there < enough:
                what = f"{enough} nodes, of which {there} {'is' if there == 1 else 'are'} there"
                self._tell("waiting", what=what, limit_s=limit_s)

        timer = threading.Timer(_SAY_SO_S, tell)
        timer.start()
        try:
            return self._dynamic.next()
        except RendezvousTimeoutError as error:
            raise RendezvousError(f"waited {limit_s:.0f} s for {enough} nodes: fewer have come") from error
        finally:
            timer.cancel()

    def _explore(self, info: RendezvousInfo) -> Optional[str]:
        """Probe the addresses of this round's nodes; this node's best address that all of them reach."""
        if self.network.fabric is None:
            return None
        from . import exploring

        own: dict[str, str] = self.network.fabric["interfaces"]
        wait, usable = partial(self._await, limit_s=_EXPLORE_S), []
        if info.world_size > 1:
            store: Any = info.store
            usable = exploring.explore(store, info.rank, info.world_size, list(own), wait).usable
        interfaces = list(dict.fromkeys(own[address] for address in usable))
        why = f"all {info.world_size - 1} peers reach this node at"
        if not interfaces:
            interfaces, why = list(filter(None, [routes.towards(self.master_addr)[0]])), "the way to node 0 is"
        self.network.settle(interfaces, why)
        return usable[0] if usable and not self.job.master_addr else None

    def num_nodes_waiting(self) -> int:
        """Whether all nodes must meet again: new ones are waiting, or one is lost.

        New nodes count only until a node has finished: from then on, they are not needed.
        """
        waiting = self._dynamic.waiting()
        if self._dynamic.participants != self._who:
            self.request_restart()
            return 1
        return int(waiting > 0 and self._decide("again") == "again")

    def _expected(self) -> int:
        return self.members.count + self._dynamic.waiting()

    def finished(self) -> bool:
        """As in the base class, but False if this round was given up first: this node then meets the others again."""
        if not self.members.has_finished and self._decide("ends") == "again":
            return False
        return super().finished()

    def request_restart(self) -> None:
        """Have all nodes meet again, even those that have finished."""
        self.members.store.set("outcome", "again")

    def _decide(self, fate: str) -> str:
        """Decide the outcome of the round: the first decision counts, for all nodes."""
        return str(self.members.store.compare_set("outcome", "", fate).decode())

    def get_run_id(self) -> str:
        """The run's id."""
        return self.job.run

    def is_closed(self) -> bool:
        """torchelastic never calls this."""
        return False

    def ended(self) -> Optional[Verdict]:
        """The verdict of a run that was over before this node joined; None: it succeeded."""
        if not self.store.check(["final/verdict"]):
            return None
        verdict: Verdict = json.loads(self.store.get("final/verdict"))
        return verdict

    def set_closed(self) -> None:
        """Close the rendezvous: no node may join from now on."""
        self._dynamic.close()

    def shutdown(self) -> bool:
        """Leave the rendezvous."""
        return self._dynamic.shutdown()
