"""This node's workers, as the worker group's process sees them; the fork server starts, signals and reaps them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple

from ..failures import Failure
from ..job import Job
from ..ranks import Group, Ranks
from ..starter import Starter
from ..store.interface import StoreError
from .agent_link import AgentLink
from .errors import PeerEndedError, StopRequestedError
from .late import LateRanks
from .nodes import Nodes
from .requests import Requests
from .waits import WAITS_S, Waits

if TYPE_CHECKING:
    from ..messages import (
        AgentToGroup,
        Cause,
        ExitedWorker,
        GroupServer,
        ServerToGroup,
        StartedWorker,
    )

MONITOR_S = 0.1
_FIRST_CAUSE_S = 2.0
"""How long a secondary failure waits for its primary cause to appear, on this or another node."""

_FAILS_TOO_S = 5.0
"""How long a failure waits for the rank to be debugged, which may be about to fail, too."""

_TELLS_S = 1.0
"""How much longer a node waits for what the one that judges finds than that one may take to find it."""

_ENDS_SOON_S = 1.0
"""How long workers may take to end before that wait is reported."""

_DEBUGGED, _LEFT = "debugged", "debugger left"
"""Counters in a round's part of the store: the rank has entered its debugger, and has exited."""

_TOLD = "flight/told"
"""A counter there, too: how many nodes know what the flight recorders tell."""


class Workers:
    """The workers of one node, over all rounds."""

    def __init__(self, job: Job, nodes: Nodes, server: GroupServer, agent: AgentLink, directory: str) -> None:
        self.running: Dict[int, StartedWorker] = {}
        """The fork server's `started` messages, by pid."""

        self.exited: Dict[int, ExitedWorker] = {}
        self._job = job
        self._nodes = nodes
        self._server = server
        self._agent = agent
        self.requests = Requests(job, nodes, agent, directory)
        self._ready = False
        self._world = 0
        self.starter: Starter = Starter()
        self._serving: Set[int] = set()
        """Ranks that serve the others until these are done."""

    def wait_until_ready(self) -> None:
        """Wait until the fork server has imported what workers are to find there; raises if it cannot, or on a stop."""
        while not self._ready:
            self.stop_if_asked()
            if self._agent.failure is not None:
                raise PeerEndedError(self._nodes.publish_failure(self._agent.failure))
            self.take_all(MONITOR_S)

    # -- one round ----------------------------------------------------------------------------------------------------

    def begin_round(self, group: Group, workers: List[Ranks], peers: Sequence[Dict[str, Any]] = ()) -> None:
        """Prepare a round, and report it to the agent. `peers`: what each node has offered."""
        if self.exited:
            from . import stuck  # few runs are restarted

            stuck.look(self._nodes, self.exited.values())
        self._world = workers[0].world_size
        role = {**self._role(), "all_nodes": self._job.max_nodes} if self._job.roles else {}
        serves = self.requests.contract.serves
        self._serving = {self.requests.rank_of(each) for each in workers if serves(self._job, each)}
        self.requests.begin(workers, peers)
        hangs = self._nodes.whole.hangs
        hangs.begin(self._nodes.round, group.nodes, group.node_rank)
        late = LateRanks(self._nodes.store, hangs, self._tell_of_recorders)
        self._waits = Waits(self._nodes.members.store, group.node_rank, group.nodes, self._world, late)
        self._agent.event(
            "rendezvous",
            round=self._nodes.round,
            restarts=group.restarts,
            master_addr=group.master_addr,
            master_port=group.master_port,
            nodes=group.nodes,
            world_size=workers[0].world_size,
            ranks=[self.requests.rank_of(each) for each in workers],
            **role,
        )
        if group.node_rank == 0 and self._nodes.round == 0:
            self._agent.event("contract", **self.requests.explained(group, workers[0]))

    def start(self, group: Group, workers: List[Ranks]) -> Dict[int, int]:
        """Start all workers; their pids by local rank."""
        self.running, self.exited = {}, {}
        self.stop_if_asked()
        for worker in workers:
            request = self.requests.of(group, worker)
            fds = self.starter.complete(request)
            self._server.send({"start": request}, fds)
            for fd in fds:
                os.close(fd)
            self.take_all(0.0)  # with any number of workers, neither side blocks on the other's full socket
        while len(self.running) + len(self.exited) < len(workers):
            self._take(self._server.receive()[0])
        pids = {about["local_rank"]: pid for pid, about in {**self.running, **self.exited}.items()}
        return dict(sorted(pids.items()))

    def failed(self) -> Dict[int, ExitedWorker]:
        """The workers that have failed, by rank."""
        failed = [about for about in self.exited.values() if about["code"] != 0]
        return {about["rank"]: about for about in failed if about["rank"] not in self.starter.ended}

    def ended_by_themselves(self) -> bool:
        """Whether all workers have exited by themselves: a stopped worker's exit code says nothing about its work."""
        left = [about for about in self.running.values() if about["rank"] not in self._serving]
        return not left and not any(about["stopped"] for about in self.exited.values())

    # -- a failure ----------------------------------------------------------------------------------------------------

    def tell_peers(self, *, restarts: int, why: Optional[Cause] = None) -> bool:
        """Publish whether a failure restarts all workers or ends the run. `why`: its cause; None: the agent knows."""
        self._wait_for_debugger()
        cause, final = (why, False) if why else self._first_cause()
        if why:
            self._agent.send({"first_cause": why})
        if restarts >= self._job.max_restarts or final:
            verdict = self._nodes.publish_failure(cause)
            if verdict["kind"] == "stop":
                self._nodes.stopping.set()
                raise PeerEndedError(verdict)
            return False
        self._nodes.request_restart()
        if not self._job.elastic:
            verdict = self._nodes.publish("restart", cause=cause)
            if verdict["kind"] != "restart":
                raise PeerEndedError(verdict)
        self._agent.send({"first_cause": None})
        if not self._job.elastic and verdict["node"] != self._nodes.node_rank:
            return True  # another node was first, and reports the restart
        most = self._job.max_restarts
        self._agent.event("restart", restarts=restarts + 1, max_restarts=most, cause=cause, **self._role())
        return True

    def forgive(self, why: Optional[Cause]) -> None:
        """Report why workers have failed, and take them as done."""
        cause = why or self._first_cause()[0]
        self._agent.send({"first_cause": None})
        rank = "" if cause["rank"] is None else f"rank {cause['rank']}: "
        told = f"{rank}{cause['message']}; ignored, as its role {self._job.role} is to be"
        self._agent.event("warning", message=told)
        self.exited = {pid: {**about, "code": 0, "stopped": False} for pid, about in self.exited.items()}

    def _role(self) -> Dict[str, str]:
        """What an event says of the role, if the run has roles."""
        return {"role": self._job.role} if self._job.roles else {}

    def _wait_for_debugger(self) -> None:
        """Wait while a rank is in its debugger: until it exits, the workers of all nodes are kept."""
        limit, met = time.monotonic() + _FAILS_TOO_S, self._nodes.members.store
        while (
            self._job.debug is not None
            and not met.add(_LEFT, 0)
            and (met.add(_DEBUGGED, 0) or time.monotonic() < limit)
        ):
            self.take_all(MONITOR_S)
            self.stop_if_asked()

    def _first_cause(self) -> Tuple[Cause, bool]:
        """Why the workers failed, from the agent, and whether that ends the run even if restarts are left.

        A secondary failure waits a moment for its primary cause to appear. After a timeout in a collective, the
        other ranks in it may time out, too: those that do not are to blame. Raises `StopRequestedError` if they have
        not failed: that they have exited may be known here before the stop.
        """
        began, known = time.monotonic(), -1
        answer: AgentToGroup = {}
        while True:
            failed = sorted(self.failed())
            if len(failed) > known:
                self._agent.send({"ask_cause": failed})
                answer, known = self._agent.answer(), len(failed)
                if answer["stopping"]:
                    raise StopRequestedError
                self._waits.tell(answer["waited"])
            waited = time.monotonic() - began
            cause = answer["cause"]
            told = self._nodes.verdict is not None or self._nodes.stopping.is_set()
            collective = cause["class"] == Failure.COLLECTIVE
            judges = collective and self._waits.judges()
            if judges or not collective:
                self._waits.late.ask(cause["class"])
            waits = cause["secondary"] or collective
            limit = WAITS_S if waits and (self._waits.look() or collective) else _FIRST_CAUSE_S
            limit += self._waits.late.limit_s + _TELLS_S if collective and not judges else 0.0
            if not waits or told or waited > limit or self._waits.are_known:
                break
            self.take_all(MONITOR_S)
        cause = self._explained(cause, judges=judges, collective=collective)
        return cause, answer.get("final", False)

    def _tell_of_recorders(self, about: Dict[str, Any]) -> None:
        """Write what the flight recorders tell to this node's stream, if no other node has."""
        if self._nodes.members.store.add(_TOLD, 1) == 1:
            self._agent.event("flight_recorder", **about)

    def _explained(self, cause: Cause, *, judges: bool, collective: bool) -> Cause:
        """Which ranks had not joined a collective that timed out, by this node or by the one that judges."""
        first = self.requests.first_rank
        found: Optional[Cause] = cause
        if judges or not collective:
            found = self._waits.late.explained(cause, self._waits.ranks, range(first, first + self._world))
        else:
            found = self._waits.finding()
        if judges:
            self._waits.publish(None if found is cause else found)
        if found is None or found is cause:
            return cause
        self._agent.send({"first_cause": found})
        return found

    def stop_if_asked(self) -> None:
        """Raise if the agent or another node has ended the run."""
        if self._nodes.stopping.is_set():
            raise StopRequestedError
        verdict = self._nodes.verdict
        if verdict is not None and verdict["kind"] != "restart":
            if verdict["kind"] == "stop":
                self._nodes.stopping.set()  # the workers have their grace time, which the agent enforces
            raise PeerEndedError(verdict)

    # -- the fork server ----------------------------------------------------------------------------------------------

    def take_all(self, wait_s: float) -> None:
        """Process all pending messages; waits for the first one for at most `wait_s`."""
        if self._server.ready(wait_s):
            self._take(self._server.receive()[0])
            while self._server.ready():
                self._take(self._server.receive()[0])

    def _take(self, message: Optional[ServerToGroup]) -> None:
        if message is None:
            os._exit(1)  # the fork server has exited, and this process follows
        if "started" in message:
            self.running[message["started"]["pid"]] = message["started"]
        elif "exited" in message:
            about = message["exited"]
            self.running.pop(about["pid"], None)
            self.exited[about["pid"]] = about
            self.starter.exited(about)
            if about["rank"] == self._job.debug:
                with contextlib.suppress(StoreError):  # the store is lost, as all its users know
                    self._nodes.members.store.add(_LEFT, 1)
        elif "debugged" in message:
            self._nodes.members.store.add(_DEBUGGED, 1)
        elif "ready" in message:
            self._ready = True

    def end(self, number: int) -> None:
        """Send the signal, then SIGKILL after the grace time, then end everything that the workers left behind."""
        self.take_all(0.0)
        if not self.exited and not self.running:
            return
        if self.running:
            self._server.send({"signal": int(number)})
        began, told, limit_s = time.monotonic(), False, self._job.round_grace_s
        while self.running and time.monotonic() < began + limit_s and not self._nodes.stopping.is_set():
            self.take_all(MONITOR_S)
            if self.running and not told and time.monotonic() > began + _ENDS_SOON_S:
                told, left = True, len(self.running)
                what = f"{left} worker{'s' * (left > 1)} to end"
                self._agent.event("waiting", what=what, limit_s=limit_s, workers=left)
        if self.running and not self._nodes.stopping.is_set():
            ignored = f"workers ignored {signal.Signals(number).name} for {limit_s:.0f} s and were killed"
            self._agent.event("warning", message=ignored)
            self._server.send({"signal": int(signal.SIGKILL)})
        while self.running and not self._nodes.stopping.is_set():
            self.take_all(MONITOR_S)
        self._server.send({"sweep": True})
        message: Optional[ServerToGroup] = {}
        while message is not None and "swept" not in message:
            message = self._server.receive()[0]
