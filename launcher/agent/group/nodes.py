"""One node's part in a run of several: the store that they share, the verdict of a round, and how they part."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ..job import Job
from .errors import RendezvousError, StopRequestedError
from .watch import Verdict, Watch, tell_end
from .workers_network import MasterPort, WorkersNetwork

Tell = Callable[..., None]

POLL_S = 0.005
_POLL_MAX_S = 0.1
_FAREWELL_S = 3.0
_WELL_S = 10.0
"""The same where all has ended well: nobody is known to be lost, and some may have got no processor for a while."""

LOST_S = 2.0
_RECORDED_S = 1.0
"""So much later than the others node 0 ends where a scheduler takes its end for the run's: theirs are on record by then."""


class Nodes:
    """What a fixed and a changing number of nodes share: the store, the verdict of a round and the end of the run."""

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

        self.master_port = MasterPort(job)
        self.network = WorkersNetwork(tell)
        self._members = job.max_nodes
        self.met = store
        """This round's part of the store."""

        self._has_finished = False
        self._tell = tell
        self._watch = Watch(job, node_rank, watched, store, tell)

    def set_closed(self) -> None:
        """The run is over; nodes that come now are not needed."""

    def say(self, kind: str, **about: Any) -> Verdict:
        """Publish a verdict to all nodes; the first one of a round counts, and is returned."""
        key, verdict = self._watch.key, json.dumps({"kind": kind, "node": self.node_rank, "host": self.host, **about})
        stands: Verdict = json.loads(self.store.compare_set(key, "", verdict))
        self._watch.hear(key, stands)
        return stands

    def say_lost(self, cause: Dict[str, Any]) -> None:
        """Tell all nodes that this one is lost."""
        verdict = {"kind": "lost", "node": self.node_rank, "host": self.host, "cause": cause}
        tell_end(self.store, self._watch.key, verdict)

    def stop(self, message: Verdict) -> None:
        """The run is to be stopped: no wait goes on, no restart follows, and all nodes are told; or this node alone leaves it."""
        if message.get("done"):
            self.leaves = True
            return
        self.asked_to_stop = True
        self.stopping.set()
        if not message["leaves"]:
            self._watch.say({"kind": "stop", "node": self.node_rank, "host": self.host, **message})

    def heard(self) -> Optional[Verdict]:
        """The verdict of this round, if there is one; a lost master or node counts as one."""
        return self._watch.verdict

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

    def lost(self) -> Optional[Verdict]:
        """The store does not answer: what that is the watch says a moment later."""
        limit = time.monotonic() + LOST_S
        while self.heard() is None and time.monotonic() < limit:
            time.sleep(POLL_S)
        return self.heard()

    def _await(
        self, what: str, met: Callable[[], bool], missing: Callable[[], List[str]], limit_s: Optional[float] = None
    ) -> None:
        """Wait until `met`, saying so, until the limit, a stop or the verdict of a failure."""
        began, pause, told = time.monotonic(), POLL_S, False
        limit_s = self.job.rdzv_timeout_s if limit_s is None else limit_s
        while not met():
            if self.stopping.is_set():
                raise StopRequestedError
            verdict = self.heard()
            if verdict is not None and verdict["kind"] != "restart":
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
            time.sleep(POLL_S)
        try:
            seen = self._farewells(1)
            while self.node_rank == 0 and seen < self._present() and time.monotonic() < limit:
                time.sleep(POLL_S)
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
