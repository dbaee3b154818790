"""torchelastic's agent, with workers that the fork server starts. Runs in a process of its own, forked from the server.

Rendezvous, restarts, rank assignment and error files are torchelastic's. Ours are only the four calls that start, watch and
stop workers, and that a failure on one node ends or restarts all of them at once.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Optional, Tuple

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError, RendezvousError

from .channel import Channel, Message
from .gang import Gang, StopRequestedError, connect, node_0_is_there
from .job import Job
from .joining import NOT_NEEDED
from .watch import Word

_MONITOR_S = 0.1
_AGAIN_S = 1.0
_FREE_RETRIES = 3
"""How often a round is repeated without counting, because somebody else took the master port meanwhile."""


class AgentLink:
    """The stdlib agent of this node: events go to it, and a thread takes what it says at any moment."""

    def __init__(self, channel: Channel) -> None:
        self.send = channel.send
        self.on_stop: Callable[[Message], None] = lambda _: None
        self._channel = channel
        self._answers: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True, name="agent").start()

    def _listen(self) -> None:
        while True:
            message = self._channel.receive()[0]
            if message is None:
                os._exit(1)  # the agent is gone, and the fork server ends the workers
            if "stop" in message:
                self.on_stop(message)
            else:
                self._answers.put(message)

    def answer(self) -> Message:
        """The next thing it says that is not a stop."""
        return self._answers.get()

    def event(self, name: str, **fields: Any) -> None:
        """Write an event to the agent stream."""
        self.send({"event": name, "fields": fields})


class PeerEndedError(Exception):
    """Another node ended the run."""

    def __init__(self, word: Word) -> None:
        super().__init__(word.get("message", word["kind"]))
        self.word = word


class NodeAgent(SimpleElasticAgent):
    """One node's worker group; the processes themselves are the fork server's children."""

    def __init__(self, spec: WorkerSpec, job: Job, gang: Any, server: Channel, agent: AgentLink, folder: str) -> None:
        super().__init__(spec)
        self._job = job
        self._gang = gang
        self._server = server
        self._agent = agent
        self._folder = folder
        self._running: Dict[int, Message] = {}
        self._exited: Dict[int, Message] = {}
        self._free_retries = 0

    # -- torchelastic's four calls ------------------------------------------------------------------------------------

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        self._running, self._exited = {}, {}
        self._stop_if_asked()
        for worker in worker_group.workers:
            self._server.send({"start": self._request(worker_group, worker)})
        while len(self._running) + len(self._exited) < len(worker_group.workers):
            self._take(self._server.receive()[0])
        pids = {about["local_rank"]: pid for pid, about in {**self._running, **self._exited}.items()}
        return dict(sorted(pids.items()))

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:
        self._end_workers(signal.SIGTERM, self._job.grace_s)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *_: Any, **__: Any) -> None:
        if not self._gang.stopping.is_set():  # then the agent ends the workers, with the grace time that is left
            self._end_workers(death_sig, self._job.grace_s)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._take_all(_MONITOR_S)
        self._stop_if_asked()
        failed = {about["rank"]: about for about in self._exited.values() if about["code"] != 0}
        if failed:
            self._tell_peers(failed)
            return RunResult(state=WorkerState.FAILED, failures={r: self._failure(a) for r, a in failed.items()})
        if not self._running and self._gang.finished():
            values = {about["rank"]: None for about in self._exited.values()}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        return RunResult(state=WorkerState.HEALTHY)

    # -- what torchelastic does, for a gang ---------------------------------------------------------------------------

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        if not self._job.elastic:  # one budget of restarts for the gang, not one per node
            self._remaining_restarts = self._job.max_restarts - self._gang.restarts
        self._agent.event(
            "rendezvous",
            round=self._gang.round,
            restarts=self._restarts(),
            master_addr=worker_group.master_addr,
            master_port=worker_group.master_port,
            nodes=worker_group.group_world_size,
            world_size=worker_group.workers[0].world_size,
            ranks=[worker.global_rank for worker in worker_group.workers],
        )

    def _exit_barrier(self) -> None:
        """Nothing: the nodes have waited for one another, however long that took; torchelastic gives up after 5 minutes."""

    def _tell_peers(self, failed: Dict[int, Message]) -> None:
        """Ask the agent for the cause and tell all nodes whether this ends the run or restarts the gang."""
        self._agent.send({"cause?": sorted(failed)})
        cause = self._agent.answer()["cause"]
        free = self._port_was_taken(cause) and self._free_retries < _FREE_RETRIES
        if free:
            self._free_retries += 1
            self._remaining_restarts += 1
        if self._remaining_restarts <= 0:
            word = self._gang.say("fail", cause=cause)
            if word["kind"] == "stop":
                self._gang.stopping.set()
                raise PeerEndedError(word)
            return
        self._gang.start_again()
        if not self._job.elastic:
            word = self._gang.say("restart", cause=cause, free=free)
            if word["kind"] != "restart":
                raise PeerEndedError(word)
            if word["node"] != self._gang.node_rank:
                return  # another node was first, and tells it
        restarts = self._restarts() + int(not free)
        self._agent.event("restart", restarts=restarts, max_restarts=self._job.max_restarts, cause=cause)

    def _restarts(self) -> int:
        if self._job.elastic:
            return int(self._worker_group.spec.max_restarts - self._remaining_restarts)
        return int(self._gang.restarts)

    def _port_was_taken(self, cause: Message) -> bool:
        text = f"{cause.get('message')} {cause.get('traceback')}"
        return "EADDRINUSE" in text and str(self._worker_group.master_port) in text

    # -- the fork server ----------------------------------------------------------------------------------------------

    def _request(self, group: WorkerGroup, worker: Any) -> Message:
        """What torchrun gives a worker in its environment (local_elastic_agent.py), and two variables of ours."""
        errors = os.path.join(self._folder, "errors", f"{self._gang.round}-{worker.local_rank}.json")
        env = {
            "LOCAL_RANK": str(worker.local_rank),
            "RANK": str(worker.global_rank),
            "GROUP_RANK": str(group.group_rank),
            "ROLE_RANK": str(worker.role_rank),
            "ROLE_NAME": group.spec.role,
            "LOCAL_WORLD_SIZE": str(group.spec.local_world_size),
            "WORLD_SIZE": str(worker.world_size),
            "GROUP_WORLD_SIZE": str(group.group_world_size),
            "ROLE_WORLD_SIZE": str(worker.role_world_size),
            "MASTER_ADDR": str(group.master_addr),
            "MASTER_PORT": str(group.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts()),
            "TORCHELASTIC_MAX_RESTARTS": str(group.spec.max_restarts),
            "TORCHELASTIC_RUN_ID": self._job.run,
            # Rank 0 serves the workers' store itself: in one that outlives a restart they would find stale peers.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            "TORCHELASTIC_ERROR_FILE": errors,
            "DISTLAUNCH_RUN_ID": self._job.run,
            "DISTLAUNCH_DEADLINE_FILE": os.path.join(self._folder, "deadline"),
        }
        env.update(self._gang.variables)
        return {"rank": worker.global_rank, "local_rank": worker.local_rank, "round": self._gang.round, "env": env}

    def _take(self, message: Optional[Message]) -> None:
        if message is None:
            os._exit(1)  # the fork server is gone, and this process with it
        if "started" in message:
            self._running[message["started"]["pid"]] = message["started"]
        elif "exited" in message:
            about = message["exited"]
            self._running.pop(about["pid"], None)
            self._exited[about["pid"]] = about

    def _take_all(self, wait_s: float) -> None:
        """Messages that are there; waits for the first one up to `wait_s`."""
        if self._server.ready(wait_s):
            self._take(self._server.receive()[0])
            while self._server.ready():
                self._take(self._server.receive()[0])

    def _end_workers(self, number: int, grace_s: float) -> None:
        """The signal, then SIGKILL after the grace time, then an end to everything that the workers left behind."""
        self._take_all(0.0)
        if not self._exited and not self._running:
            return
        if self._running:
            self._server.send({"signal": int(number)})
        limit = time.monotonic() + grace_s
        while self._running and time.monotonic() < limit and not self._gang.stopping.is_set():
            self._take_all(_MONITOR_S)
        if self._running and not self._gang.stopping.is_set():
            ignored = f"workers ignored {signal.Signals(number).name} for {grace_s:.0f} s and were killed"
            self._agent.event("warning", message=ignored)
            self._server.send({"signal": int(signal.SIGKILL)})
        while self._running and not self._gang.stopping.is_set():
            self._take_all(_MONITOR_S)
        self._server.send({"sweep": True})
        message: Optional[Message] = {}
        while message is not None and "swept" not in message:
            message = self._server.receive()[0]

    def _stop_if_asked(self) -> None:
        """Leave torchelastic's loop when our agent or another node has ended the run."""
        if self._gang.stopping.is_set():
            raise StopRequestedError
        word = self._gang.heard()
        if word is not None and word["kind"] != "restart":
            if word["kind"] == "stop":
                self._gang.stopping.set()  # the workers have their grace time, which the agent keeps
            raise PeerEndedError(word)

    def _failure(self, about: Message) -> ProcessFailure:
        path = os.path.join(self._folder, "errors", f"{self._gang.round}-{about['local_rank']}.json")
        return ProcessFailure(local_rank=about["local_rank"], pid=about["pid"], exitcode=about["code"], error_file=path)


def _present_store(job: Job, node_rank: int, host: str, agent: AgentLink, connected: Callable[[], Any]) -> Any:
    """The run's store, but never that of a gang that is ending.

    Where a scheduler starts nodes again one by one, a new node may come while the one before still serves its store.
    There its place is taken: by its predecessor.
    """
    me = f"{host} {os.getpid()} {time.time()}"
    limit = time.monotonic() + job.rdzv_timeout_s
    told = False
    while True:
        store = connected()
        if job.elastic or store.compare_set(f"member/{node_rank}", "", me).decode() == me:
            return store
        if time.monotonic() > limit:
            raise RendezvousError(f"waited {job.rdzv_timeout_s:.0f} s for the nodes of the attempt before to end")
        if not told:
            told = True
            agent.event("waiting", what="the nodes of the attempt before to end", limit_s=job.rdzv_timeout_s)
        del store
        time.sleep(_AGAIN_S)


def _join(setup: Message, server: Channel, agent: AgentLink, listen_fd: Optional[int]) -> Tuple[NodeAgent, Any]:
    """Connect to the run's store and build torchelastic's agent on it."""
    job, node_rank, host = Job(**setup["job"]), setup["node_rank"], setup["host"]
    place = agent.answer()
    addr, port = place["endpoint"]
    if node_rank > 0 and not node_0_is_there(job, addr, port):
        raise RendezvousClosedError if job.elastic else RendezvousError("the agent of node 0 is gone")
    store = _present_store(
        job, node_rank, host, agent, lambda: connect(addr, port, listen_fd=listen_fd, timeout_s=job.rdzv_timeout_s)
    )
    watched = connect(addr, port, listen_fd=None, timeout_s=job.rdzv_timeout_s)
    kind: Any = Gang
    if job.elastic:  # torch's dynamic rendezvous is imported only where it is of use
        from .elastic_gang import ElasticGang

        kind = ElasticGang
    gang = kind(job, node_rank, host, addr, store, watched, agent.event)
    gang.fabric = place["fabric"]
    agent.on_stop = gang.stop
    spec = WorkerSpec(
        role="default",
        local_world_size=setup["workers"],
        rdzv_handler=gang,
        entrypoint=job.command[0],
        args=tuple(job.command[1:]),
        max_restarts=job.max_restarts,
        monitor_interval=1e-6,  # _monitor_workers itself waits, and wakes when something happens
    )
    return NodeAgent(spec, job, gang, server, agent, setup["folder"]), gang


def main(setup: Message, server: Channel, channel: Channel, listen_fd: Optional[int]) -> int:
    """Run this node's workers to their end and tell the agent how it went."""
    # torchelastic looks its own host name up for every event; where DNS does not answer, that takes seconds each time.
    socket.getfqdn = lambda name="": name or socket.gethostname()
    agent = AgentLink(channel)
    gang: Any = None
    result: Message
    try:
        node_agent, gang = _join(setup, server, agent, listen_fd)
        outcome = node_agent.run()
        gang.set_closed()
        result = {"result": "failed" if outcome.is_failed() else "success"}
    except StopRequestedError:
        result = {"result": "stopped"} if gang.asked_to_stop else _by_peer(gang.heard())
    except PeerEndedError as error:
        result = _by_peer(error.word)
    except RendezvousClosedError:
        agent.event("warning", message=NOT_NEEDED)
        word = gang.ended() if gang is not None else None
        result = _by_peer(word) if word else {"result": "success"}
    except RendezvousError as error:
        word = gang.lost() if gang is not None and isinstance(error, RendezvousConnectionError) else None
        result = _by_peer(word) if word else {"result": "failed", "error": str(error), "class": "node", "secondary": True}
    except Exception as error:  # noqa: BLE001 - torch raises RuntimeError for all of its network errors
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}".split("\nException raised from")[0]
        lost = isinstance(error, RuntimeError)  # the store's, which another node's end may have taken away
        result = {"result": "failed", "error": message, "class": "fabric", "secondary": lost}
    agent.send({**result, "time": time.time()})
    if gang is not None:
        gang.farewell()
    sys.stderr.flush()
    return 0


def _by_peer(word: Word) -> Message:
    """How this node's part ends when another node has ended the run."""
    return {"result": "stopped_by_peer" if word["kind"] == "stop" else "failed", "word": word}
