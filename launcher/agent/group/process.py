"""The worker group's process on one node, forked from the fork server: meets the other nodes and requests workers."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, NoReturn, Optional, Tuple

from ..contracts import load
from ..failures import Failure
from ..job import Job
from ..protocol import NOT_NEEDED
from ..store.interface import GoneError, Known, Store, StoreError
from ..store.server import Server
from ..system import garbage, threads
from .agent_link import AgentLink
from .errors import NotNeededError, PeerEndedError, RendezvousError, StopRequestedError
from .rendezvous import OVER, FixedNodes, connect, node_0_is_there
from .whole import END, goes_on_without
from .witness import Witness
from .worker_group import WorkerGroup

if TYPE_CHECKING:
    from ..messages import GroupAgent, GroupServer, Result, ServerSetup, Verdict

_AGAIN_S = 1.0


def main(
    setup: ServerSetup,
    server: GroupServer,
    channel: GroupAgent,
    listen_fd: Optional[int],
) -> int:
    """Run this node's workers until they have exited, and report the result to the agent."""
    garbage.collect()
    threads.watch(lambda message, trace: end_broken(channel, message, trace))
    witness = Witness(Job(**setup["job"]), setup)
    agent = AgentLink(channel, witness.agent_is_gone)
    nodes: Any = None
    trace = ""
    try:
        nodes, group = _join(setup, server, agent, listen_fd)
        witness.nodes = nodes
        succeeded = group.run()
        nodes.set_closed()
        result: Result = {"result": "success" if succeeded else "failed"}
    except NotNeededError:
        agent.event("warning", message=NOT_NEEDED)
        verdict = None
        with contextlib.suppress(StoreError):  # node 0 may have exited since
            verdict = nodes.ended() if nodes is not None else None
        result = _by_peer(verdict) if verdict else {"result": "success"}
    except Exception as error:  # noqa: BLE001 - each error is reported as a result
        result, trace = _result_of(error, nodes)
    if nodes is not None and nodes.all_succeeded():  # before this node was stopped, or lost its store
        result = {"result": "success"}
    result["time"] = time.time()
    agent.send({"ended": result})
    if nodes is not None:
        nodes.shutdown_barrier(reported="error" not in result, succeeded=result["result"] == "success")
        _tell_refused(nodes.store, agent)
    with contextlib.suppress(OSError):
        sys.stderr.write(trace)
    return 0


def _result_of(error: Exception, nodes: Any) -> Tuple[Result, str]:
    """This node's result after an error, and the traceback if the error is unexpected."""
    if isinstance(error, StopRequestedError):
        return ({"result": "stopped"} if nodes.stopping.by_agent else _by_peer(nodes.verdict)), ""
    if isinstance(error, PeerEndedError):
        return _by_peer(error.verdict), ""
    if isinstance(error, RendezvousError):
        return {"result": "failed", "error": str(error), "kind": Failure.NODE, "secondary": True}, ""
    if isinstance(error, StoreError):
        verdict = nodes.verdict_on_loss() if nodes is not None else None
        if verdict:
            return _by_peer(verdict), ""
        gone = isinstance(error, GoneError)
        return {"result": "failed", "error": str(error), "kind": Failure.NODE, "secondary": True, "lost": gone}, ""
    import traceback

    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = f"{type(error).__name__}: {error}"
    result: Result = {"result": "failed", "error": message, "kind": Failure.FABRIC, "secondary": False}
    if not isinstance(error, OSError):
        result["kind"], result["traceback"] = Failure.NODE, trace
    return result, trace


def end_broken(agent: GroupAgent, message: str, trace: str) -> NoReturn:
    """Report an internal failure to the agent, and exit."""
    agent.send({"broken": message, "traceback": trace})
    os._exit(os.EX_SOFTWARE)


def _tell_refused(store: Any, agent: AgentLink) -> None:
    """Warn if the store that this node serves has refused connections after the first one."""
    if isinstance(store, Server) and store.refused > 1:
        message = f"the run's store has refused {store.refused} connections that do not know the run's key"
        agent.event("warning", message=message)


def _by_peer(verdict: Verdict) -> Result:
    """This node's result if another node has ended the run."""
    return {"result": "stopped_by_peer" if verdict["kind"] == "stop" else "failed", "word": verdict}


def _join(setup: ServerSetup, server: GroupServer, agent: AgentLink, listen_fd: Optional[int]) -> Tuple[Any, Any]:
    """Connect to the run's store; this node's view of all nodes, and its part of the worker group."""
    job, node_rank, host = Job(**setup["job"]), setup["node_rank"], setup["host"]
    place = agent.answer()
    addr, port = place["endpoint"]
    if node_rank > 0 and not node_0_is_there(job, addr, port):
        raise NotNeededError if job.elastic else RendezvousError("the agent of node 0 has exited")

    def warn(message: str) -> None:
        agent.event("warning", message=message)

    def connected() -> Store:
        return connect(job, addr, port, listen_fd=listen_fd, warn=warn)

    kind: Any = FixedNodes
    if job.elastic:
        from .elastic import ElasticNodes  # few runs are

        kind, store = ElasticNodes, connected()
    else:
        store = _present_store(job, setup, agent, connected)
    nodes = kind(job, node_rank, host, addr, store, agent.event)
    nodes.network.fabric = place["fabric"]
    nodes.network.master_port.hand_over = lambda sock: server.send({"listens": True}, [sock.fileno()])
    agent.on_stop = nodes.request_stop
    nodes.whole.hangs.send, agent.on_hang_message = agent.send, nodes.whole.hangs.hear
    if load(job.contract).mpi:
        from .mpi import MpiGroup

        return nodes, MpiGroup(job, nodes, server, agent, setup)
    return nodes, WorkerGroup(job, nodes, setup["workers"], server, agent, setup["scratch"])


def _present_store(job: Job, setup: ServerSetup, agent: AgentLink, connected: Callable[[], Any]) -> Any:
    """The run's store, but never that of a worker group that is shutting down.

    A scheduler that restarts nodes one by one may start a node while the store of the previous attempt is still served.
    In that store, the node's place is taken by its predecessor. If nodes meet at a port that the user names, and none
    is started again, it may be the store of another run, which is over.
    """
    others = "any_order" in job.rendezvous and not job.replaces_lost
    me = json.dumps([setup["host"], os.getpid(), time.time()])
    limit = time.monotonic() + job.rdzv_timeout_s
    told = False
    while True:
        store = connected()
        over = store.check([OVER])
        if over and not others:
            store.close()
            raise NotNeededError
        if goes_on_without(job, store, setup["node_rank"]):
            _stand_by(store, agent, job.unreachable_s)
        if not over and store.compare_set(f"member/{setup['node_rank']}", "", me).decode() == me:
            return store
        if time.monotonic() > limit:
            raise RendezvousError(f"waited {job.rdzv_timeout_s:.0f} s for the nodes of the previous attempt to exit")
        if not told:
            told = True
            agent.event("waiting", what="the nodes of the previous attempt to exit", limit_s=job.rdzv_timeout_s)
        store.close()
        time.sleep(_AGAIN_S)


def _stand_by(store: Store, agent: AgentLink, pause_s: float) -> NoReturn:
    """Wait until a run is over that continues without this node, or until it is to start again, with this node."""
    agent.event("warning", message="the run continues without this node, which waits until it ends or starts again")
    known: Dict[str, Known] = {OVER: None, END: None}
    while True:
        over, end = store.wait(known, pause_s)
        if over is not None:
            raise NotNeededError
        verdict: Optional[Verdict] = json.loads(end) if end else None
        if verdict is not None and verdict["kind"] != "done":
            raise PeerEndedError(verdict)
        known[END] = None if end is None else end.decode()
