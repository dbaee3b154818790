"""The nodes of a run as one gang: rendezvous, restarts together, and word of a failure, over one store on node 0.

`Gang` is the rendezvous of a fixed number of nodes: the node rank is the plan's, every round has its own keys and its own
master port, so nothing of an earlier round can be read by mistake. No torch is needed for it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import net, ports
from .job import LOOPBACK, Job
from .store import Prefixed, Server, Store
from .watch import Watch, Word, tell_end

Tell = Callable[..., None]

_POLL_S = 0.005
_POLL_MAX_S = 0.1
_FAREWELL_S = 3.0
_WELL_S = 10.0
"""The same where all has ended well: nobody is known to be lost, and some may have got no processor for a while."""

_LOST_S = 2.0
_SEE_S = 5.0
_RECORDED_S = 1.0
"""So much later than the others node 0 ends where a scheduler takes its end for the run's: theirs are on record by then."""

_DONE = "done"
OVER = "over"
"""Key that says to who comes late that the run has ended well."""


class StopRequestedError(Exception):
    """The agent wants this process to stop waiting: the run is being stopped."""


class RendezvousError(Exception):
    """The nodes have not met."""


class NotNeededError(Exception):
    """The run was over when this node came."""


class Round(NamedTuple):
    """What the nodes have agreed on for one round."""

    workers: List[int]
    """How many workers each node has, by node rank."""

    master_addr: str
    master_port: int


def node_0_is_there(job: Job, addr: str, port: int) -> bool:
    """Whether its agent runs: where its address was given, it listens from before the others start to its own end."""
    try:
        if net.is_address(str(job.rendezvous.get("addr"))) and "any_order" not in job.rendezvous:
            socket.create_connection((addr, port), timeout=_SEE_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # the store's own attempts take longer, and say what is wrong
    return True


def connect(job: Job, addr: str, port: int, *, listen_fd: Optional[int], warn: Callable[[str], None]) -> Store:
    """The run's store: the store itself on the node that holds the listening socket, a client elsewhere."""
    if listen_fd is not None:
        return Server(socket.socket(fileno=listen_fd), job.key, warn, nodes=job.max_nodes, host_s=job.unreachable_s)
    from .store_client import Client

    comes_back = job.replaces_lost and "port" in job.rendezvous  # else one that is new has another port
    limits = {"timeout_s": job.rdzv_timeout_s, "answer_s": job.peer_timeout_s, "host_s": job.unreachable_s}
    return Client(addr, port, key=job.key, comes_back=comes_back, tell=warn, **limits)


class GangBase:
    """What fixed and elastic gangs share: the store, the word of a round and the end of the run."""

    def __init__(self, job: Job, node_rank: int, host: str, master_addr: str, store: Any, watched: Any, tell: Tell) -> None:
        """`watched` is another connection to the store."""
        self.job = job
        self.master_addr = master_addr
        self.node_rank = node_rank
        self.host = host
        self.store = store
        self.round = -1
        self.restarts = 0
        self.stopping = threading.Event()
        self.asked_to_stop = False
        self.leaves = False
        """Whether this node ends once its own workers have succeeded, though others go on."""

        self.serves_workers = False
        """Whether node 0 of the round serves the workers' store."""

        self.hand_over: Callable[[socket.socket], object] = lambda _: None
        """Gives the fork server a socket that listens where workers will look for their store."""

        self._lent_port: Optional[socket.socket] = None
        self.fabric: Optional[Dict[str, Any]] = None
        """What the agent has found of this node's fabric; None where all is on one host."""

        self.variables: Dict[str, str] = {}
        """For the workers, by what peers reach."""

        self._members = job.max_nodes
        self.met = store
        """This round's part of the store."""

        self._has_finished = False
        self._tell = tell
        self._watch = Watch(job, node_rank, watched, store, tell)

    def set_closed(self) -> None:
        """The run is over; nodes that come now are not needed."""

    def say(self, kind: str, **about: Any) -> Word:
        """Tell all nodes; the first word of a round stands, and is returned."""
        key, word = self._watch.key, json.dumps({"kind": kind, "node": self.node_rank, "host": self.host, **about})
        stands: Word = json.loads(self.store.compare_set(key, "", word))
        self._watch.hear(key, stands)
        return stands

    def say_lost(self, cause: Dict[str, Any]) -> None:
        """Tell all nodes that this one is lost."""
        word = {"kind": "lost", "node": self.node_rank, "host": self.host, "cause": cause}
        tell_end(self.store, self._watch.key, word)

    def stop(self, message: Word) -> None:
        """The run is to be stopped: no wait goes on, no restart follows, and all nodes are told; or this node alone leaves it."""
        if message.get("done"):
            self.leaves = True
            return
        self.asked_to_stop = True
        self.stopping.set()
        if not message["leaves"]:
            self._watch.say({"kind": "stop", "node": self.node_rank, "host": self.host, **message})

    def heard(self) -> Optional[Word]:
        """The word of this round, if there is one; a lost master or node counts as one."""
        return self._watch.word

    def _begin(self, store: Any, members: int) -> None:
        """A round of so many nodes, which share that store."""
        self.met, self._members, self._has_finished = store, members, False

    def finished(self) -> bool:
        """This node's workers have succeeded; whether those of all nodes of the round have."""
        if not self._has_finished:
            self._has_finished = True
            self.met.add("finished", 1)
        return int(self.met.add("finished", 0)) >= self._members

    def start_again(self) -> None:
        """Workers of this node have failed, and all are to start again; also those who have finished."""

    def lost(self) -> Optional[Word]:
        """The store does not answer: what that is the watch says a moment later."""
        limit = time.monotonic() + _LOST_S
        while self.heard() is None and time.monotonic() < limit:
            time.sleep(_POLL_S)
        return self.heard()

    def open_master_port(self) -> Dict[str, Any]:
        """A port on this node for the workers' store, on which we listen from now on; and whether it is us who serve the store.

        Without torch here nobody can, and rank 0 does: what it runs may have a Python of its own. It finds the port free.
        """
        asked, only = self.job.master_port if self.round <= 0 else 0, LOOPBACK if self.job.on_loopback else ""
        if self._lent_port is not None:
            self._lent_port.close()
            self._lent_port = None
        found = importlib.util.find_spec("torch")
        serves = found is not None and found.origin is not None  # None: a mere folder of that name
        sock = ports.listening(asked, only) if serves else ports.lent(asked)
        port = ports.port_of(sock)
        if serves:
            self.hand_over(sock)
            sock.close()
        else:
            self._lent_port = sock
        return {"port": port, "serves": serves}

    def settle(self, interfaces: List[str], why: str) -> None:
        """Decide the variables that depend on the interfaces by which peers reach this node, and tell all of them."""
        if self.fabric is None:
            return
        from . import fabric_env

        known = {**os.environ, **{variable["name"]: variable["value"] for variable in self.fabric["variables"]}}
        chosen = fabric_env.settle(self.fabric, interfaces, known, why)
        variables = [variable._asdict() for variable in chosen] + self.fabric["variables"]
        self.variables = {variable["name"]: variable["value"] for variable in variables if variable["source"] == "chosen"}
        self._tell("fabric", variables=variables, notes=self.fabric["notes"], interfaces=interfaces)

    def _await(
        self, what: str, met: Callable[[], bool], missing: Callable[[], List[str]], limit_s: Optional[float] = None
    ) -> None:
        """Wait until `met`, saying so, until the limit, a stop or the word of a failure."""
        began, pause, told = time.monotonic(), _POLL_S, False
        limit_s = self.job.rdzv_timeout_s if limit_s is None else limit_s
        while not met():
            if self.stopping.is_set():
                raise StopRequestedError
            word = self.heard()
            if word is not None and word["kind"] != "restart":
                raise StopRequestedError
            waited = time.monotonic() - began
            if waited > limit_s:
                nodes = missing()
                absent = f"; missing: node {', '.join(nodes)}" if nodes else ""
                raise RendezvousError(f"waited {waited:.0f} s for {what}{absent}")
            if waited > 2 and not told:
                told = True
                nodes = missing()
                absent = f" (missing: node {', '.join(nodes)})" if nodes else ""
                self._tell("waiting", what=what + absent, limit_s=limit_s)
            time.sleep(pause)
            pause = min(pause * 1.2, _POLL_MAX_S)

    def _present(self) -> int:
        """How many nodes there are."""
        return self._members

    def ended_well(self) -> bool:
        """Whether all nodes' workers have ended well, though this node has not come to know it in its turn."""
        return False

    def farewell(self, *, told: bool, well: bool) -> None:
        """Node 0's store serves until all others have seen how the run ended, or for 3 seconds, after a success 10.

        `told`: they know of this node's end, and need not hear of it from the store. `well`: all nodes' workers have ended well.
        """
        limit = time.monotonic() + (_WELL_S if well else _FAREWELL_S)
        if well or (told and not self.job.elastic):  # who leaves an elastic run is to be missed by the others
            self._watch.leave()
        while self._watch.has_to_say and time.monotonic() < limit:
            time.sleep(_POLL_S)
        try:
            seen = self._farewells(1)
            while self.node_rank == 0 and seen < self._present() and time.monotonic() < limit:
                time.sleep(_POLL_S)
                seen = self._farewells(0)
        except RuntimeError:  # the store is gone, or a node with it: there is nobody to wait for
            pass
        if well and self.node_rank == 0 and self._members > 1 and self.job.replaces_lost:
            self.stopping.wait(_RECORDED_S)

    def _farewells(self, more: int) -> int:
        """Add so many; how many there are of this round's nodes, and of nodes that came to none.

        Of a round before none counts: others have taken the places of those who were lost then.
        """
        seen = int(self.met.add("farewell", more))
        return seen if self.met is self.store else seen + int(self.store.add("farewell", 0))


class Gang(GangBase):
    """Static rendezvous: `max_nodes` nodes, node rank as planned."""

    def next_rendezvous(self, workers: int) -> Round:
        """All nodes meet in the next round, this one with so many workers; node 0 says with which port.

        Raises `RendezvousError` with who is missing.
        """
        self.round += 1
        prefix = f"round/{self.round}"
        self._watch.begin(f"{prefix}/word", watch_beats=self.round > 0)
        self.store.set(f"{prefix}/join/{self.node_rank}", json.dumps([workers, self.job.attempt, self.job.why_again]))
        self.store.add(f"{prefix}/joined", 1)
        if self.node_rank == 0:
            self._gather(prefix)
            self.restarts += int(self.round > 0)
            joined = self.store.multi_get([f"{prefix}/join/{node}" for node in range(self.job.max_nodes)])
            counts, numbers, reasons = zip(*map(json.loads, joined))
            # A scheduler that starts nodes one by one counts its attempts for each of them.
            attempt = [max(numbers), "node" if "node" in reasons else max(reasons)]
            go = {
                **self.open_master_port(),
                "addr": self.job.master_addr,
                "restarts": self.restarts,
                "attempt": attempt,
                "workers": counts,
            }
            self.store.set(f"{prefix}/go", json.dumps(go))
        self._await(f"node 0 to open round {self.round}", lambda: self.store.check([f"{prefix}/go"]), list)
        go = json.loads(self.store.get(f"{prefix}/go"))
        self.restarts, self.serves_workers = go["restarts"], go["serves"]
        told = self.job.master_addr or go["addr"]
        self.master_addr = told or self.master_addr
        self._watch.begin(f"{prefix}/word", watch_beats=True)
        if self.round == 0:
            self._explore(known=told is not None)
        if go["attempt"][0]:
            number, why = go["attempt"]
            self.variables.update(DISTLAUNCH_ATTEMPT=str(number), DISTLAUNCH_ATTEMPT_REASON=why)
        self._begin(Prefixed(prefix, self.store), self.job.max_nodes)
        return Round(go["workers"], self.master_addr, go["port"])

    def _explore(self, *, known: bool) -> None:
        """Try one another's addresses; what all reach of node 0 is MASTER_ADDR, of this node its interface."""
        if self.fabric is None:
            return
        from . import reach

        own: Dict[str, str] = self.fabric["interfaces"]
        found = reach.explore(self.store, self.node_rank, self.job.max_nodes, list(own), self._await)
        if found.master and not known:
            self.master_addr = found.master[0]
        interfaces = list(dict.fromkeys(own[address] for address in found.usable))
        self.settle(interfaces, f"all {self.job.max_nodes - 1} peers reach this node at")
        if found.cut_off and own and self.node_rank == 0:  # else all are on one machine, which has no network
            pairs = ", ".join(f"{one} to {other}" for one, other in found.cut_off[:5])
            more = f" and {len(found.cut_off) - 5} more" if len(found.cut_off) > 5 else ""
            self._tell("warning", message=f"no address leads from node {pairs}{more}: what these send one another will hang")

    def finished(self) -> bool:
        """As for all runs; the word of the round decides whether that came first, or the word of a node that stops the run."""
        if not super().finished() or self.say(_DONE)["kind"] != _DONE:
            return False
        self.store.set(OVER, "")
        return True

    def ended_well(self) -> bool:
        """The word of the round says so, which may not have been heard here yet where this node's part was done."""
        limit = time.monotonic() + _LOST_S
        while self._has_finished and self.heard() is None and time.monotonic() < limit:
            time.sleep(_POLL_S)
        return (self.heard() or {}).get("kind") == _DONE

    def begins_again(self) -> bool:
        """Whether a node has asked for a restart: all stop their workers then and come to the next round."""
        word = self.heard()
        return bool(word is not None and word["kind"] == "restart")

    def _gather(self, prefix: str) -> None:
        nodes = self.job.max_nodes

        def missing() -> List[str]:
            return [str(n) for n in range(nodes) if not self.store.check([f"{prefix}/join/{n}"])]

        self._await(f"{nodes} nodes to join round {self.round}", lambda: self.store.add(f"{prefix}/joined", 0) >= nodes, missing)
