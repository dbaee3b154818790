"""The process of the gang on one node, forked from the fork server: meets the other nodes and asks for workers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from typing import Any, Callable, NoReturn, Optional, Tuple

from . import threads
from .channel import Channel, Message
from .gang import OVER, Gang, NotNeededError, RendezvousError, StopRequestedError, connect, node_0_is_there
from .job import Job
from .joining import NOT_NEEDED
from .store import GoneError, Server, Store, StoreError
from .watch import Word
from .witness import Witness
from .workers import AgentLink, PeerEndedError

_AGAIN_S = 1.0


def main(setup: Message, server: Channel, channel: Channel, listen_fd: Optional[int]) -> int:
    """Run this node's workers to their end and tell the agent how it went."""
    threads.watch(lambda message, trace: end_broken(channel, message, trace))
    witness = Witness(Job(**setup["job"]), setup)
    agent = AgentLink(channel, witness.agent_is_gone)
    gang: Any = None
    result: Message
    trace = ""
    try:
        gang, group = _join(setup, server, agent, listen_fd)
        witness.gang = gang
        succeeded = group.run()
        gang.set_closed()
        result = {"result": "success" if succeeded else "failed"}
    except StopRequestedError:
        result = {"result": "stopped"} if gang.asked_to_stop else _by_peer(gang.heard())
    except PeerEndedError as error:
        result = _by_peer(error.word)
    except NotNeededError:
        agent.event("warning", message=NOT_NEEDED)
        word = gang.ended() if gang is not None else None
        result = _by_peer(word) if word else {"result": "success"}
    except RendezvousError as error:
        result = {"result": "failed", "error": str(error), "class": "node", "secondary": True}
    except StoreError as error:
        word = gang.lost() if gang is not None else None
        gone = isinstance(error, GoneError)
        failed = {"result": "failed", "error": str(error), "class": "node", "secondary": True, "lost": gone}
        result = _by_peer(word) if word else failed
    except Exception as error:  # noqa: BLE001 - torch raises RuntimeError for all of its network errors
        import traceback

        trace = traceback.format_exc()
        message = f"{type(error).__name__}: {error}".split("\nException raised from")[0]
        lost = isinstance(error, RuntimeError)  # the store's, which another node's end may have taken away
        bug = {} if lost or isinstance(error, OSError) else {"traceback": trace}
        result = {"result": "failed", "error": message, "class": "fabric", "secondary": lost, **bug}
    if gang is not None and gang.ended_well():  # before this node was to be stopped, or its store was gone
        result = {"result": "success"}
    agent.send({**result, "time": time.time()})
    if gang is not None:
        gang.farewell(told="error" not in result, well=result["result"] == "success")
        _tell_refused(gang.store, agent)
    with contextlib.suppress(OSError):
        sys.stderr.write(trace)
    return 0


def end_broken(agent: Channel, message: str, trace: str) -> NoReturn:
    """What failed is no part of a run's own end: tell it, and end."""
    agent.send({"broken": message, "traceback": trace})
    os._exit(os.EX_SOFTWARE)


def _tell_refused(store: Any, agent: AgentLink) -> None:
    """Whether more strangers than the first have come to the store that this node serves."""
    if isinstance(store, Server) and store.refused > 1:
        message = f"the run's store has refused {store.refused} connections that do not know the run's key"
        agent.event("warning", message=message)


def _by_peer(word: Word) -> Message:
    """How this node's part ends when another node has ended the run."""
    return {"result": "stopped_by_peer" if word["kind"] == "stop" else "failed", "word": word}


def _join(setup: Message, server: Channel, agent: AgentLink, listen_fd: Optional[int]) -> Tuple[Any, Any]:
    """The gang of this node, with its connections to the run's store, and its group of workers."""
    job, node_rank, host = Job(**setup["job"]), setup["node_rank"], setup["host"]
    place = agent.answer()
    addr, port = place["endpoint"]
    if node_rank > 0 and not node_0_is_there(job, addr, port):
        raise NotNeededError if job.elastic else RendezvousError("the agent of node 0 is gone")
    kind: Any
    group: Any

    def warn(message: str) -> None:
        agent.event("warning", message=message)

    def connected() -> Store:
        return connect(job, addr, port, listen_fd=listen_fd, warn=warn)

    if job.elastic:  # torch's dynamic rendezvous
        # It looks its own host name up for every event; where DNS does not answer, that takes seconds each time.
        socket.getfqdn = lambda name="": name or socket.gethostname()
        from . import elastic, elastic_gang

        kind, group = elastic_gang.ElasticGang, elastic.ElasticGroup
        store = connected()
    else:
        from .fixed import FixedGroup

        kind, group = Gang, FixedGroup
        store = _present_store(job, setup, agent, connected)
    watched = store if listen_fd is not None else connected()
    gang = kind(job, node_rank, host, addr, store, watched, agent.event)
    gang.fabric = place["fabric"]
    gang.hand_over = lambda sock: server.send({"listens": True}, [sock.fileno()])
    agent.on_stop = gang.stop
    return gang, group(job, gang, setup["workers"], server, agent, setup["scratch"])


def _present_store(job: Job, setup: Message, agent: AgentLink, connected: Callable[[], Any]) -> Any:
    """The run's store, but never that of a gang that is ending.

    Where a scheduler starts nodes again one by one, a new node may come while the one before still serves its store.
    There its place is taken: by its predecessor.
    """
    me = json.dumps([setup["host"], os.getpid(), time.time()])
    limit = time.monotonic() + job.rdzv_timeout_s
    told = False
    while True:
        store = connected()
        if store.check([OVER]):
            store.close()
            raise NotNeededError
        if store.compare_set(f"member/{setup['node_rank']}", "", me).decode() == me:
            return store
        if time.monotonic() > limit:
            raise RendezvousError(f"waited {job.rdzv_timeout_s:.0f} s for the nodes of the attempt before to end")
        if not told:
            told = True
            agent.event("waiting", what="the nodes of the attempt before to end", limit_s=job.rdzv_timeout_s)
        store.close()
        time.sleep(_AGAIN_S)
