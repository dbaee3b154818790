"""Rendezvous of nodes that an unknown scheduler has started, each with torchrun's options."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.network import ports, routes
from launcher.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.messages import Rendezvous
    from launcher.torchrun.request import Request

_PATIENCE_S, _PAUSE_S = 2.0, 10.0
"""How long a node tries at first, and at most, before it looks again whether the port is free."""

_AGAIN_S = 0.5


class Place(NamedTuple):
    """This node's place in the run."""

    node_rank: int
    meets: Rendezvous
    """The agents' rendezvous, as `Job.rendezvous`."""


def is_here(host: str) -> bool:
    """Whether the host is a name or an address of this machine."""
    if host in ("localhost", socket.gethostname()):
        return True
    own = {"127.0.0.1", "::1", *(address for addresses in routes.own_addresses().values() for address in addresses)}
    return any(address in own or address.startswith("127.") for address in routes.resolve(host))


def c10d(asked: Request, say: Callable[[str], None]) -> Place:
    """Node 0 listens at the endpoint; the other nodes get their ranks in the order in which they connect to it.

    torchrun sorts them by address, for which all of them must be there first.

    A node on the endpoint's host becomes node 0 once the port is free: what listens there may be left from another run.
    A run of fixed nodes that has all of them is another one, too.
    """
    from launcher.agent.store.client import Client
    from launcher.agent.store.interface import StoreError

    job, where, limit_s = asked.job, f"{asked.host}:{asked.port}", asked.job.rdzv_timeout_s
    here = is_here(asked.host) if asked.host_is_us is None else asked.host_is_us
    limit, patience_s, say = time.monotonic() + limit_s, _PATIENCE_S, _once(say)
    failure: CommandError | None = None
    while True:
        if here and (fd := _bound(asked)) is not None:
            return Place(0, {"addr": asked.host, "port": asked.port, "everywhere": True, "fd": fd})
        left = max(0.0, limit - time.monotonic())
        if failure and not left:
            raise failure
        patience_s = min(patience_s, left)
        try:
            with contextlib.closing(
                Client(asked.host, asked.port, key=job.key, timeout_s=patience_s, comes_back=True, tell=say)
            ) as store:
                rank = store.add("arrived", 1)
                if job.elastic or rank < job.max_nodes:
                    return Place(rank, {"addr": store.peer, "port": asked.port, "everywhere": True})
                say(f"waits for the run at {where} to end, for at most {limit_s:.0f} s")
                failure = CommandError(f"the run at {where} has all of its nodes, and did not end in {limit_s:.0f} s")
                with contextlib.suppress(StoreError):  # it has ended
                    store.wait({"never": None}, min(left, _PAUSE_S))
            time.sleep(_AGAIN_S)
        except StoreError as error:
            hint = "is node 0 running, with the same --rdzv-endpoint and --rdzv-id?"
            failure = CommandError(f"node 0 did not answer at {where} in {limit_s:.0f} s: {error}", hint=hint)
            say(f"waits for node 0 at {where}, for at most {limit_s:.0f} s")
            patience_s = min(patience_s * 2, _PAUSE_S) if here else limit_s


def static(asked: Request, say: Callable[[str], None]) -> Rendezvous:
    """Listen on node 0's port once it is free, as another run may still have it."""
    limit_s = asked.job.rdzv_timeout_s
    limit, say = time.monotonic() + limit_s, _once(say)
    while (fd := _bound(asked)) is None:
        if time.monotonic() > limit:
            hint = "is another run there? --master-port, or the endpoint's port, names another one"
            raise CommandError(f"port {asked.port} was not free in {limit_s:.0f} s", hint=hint)
        say(f"waits for port {asked.port}, which is in use, for at most {limit_s:.0f} s")
        time.sleep(_AGAIN_S)
    return {**asked.job.rendezvous, "fd": fd}


def _bound(asked: Request) -> int | None:
    """The descriptor of a socket that listens at the run's port; None if that is taken."""
    try:
        return ports.listening(asked.port).detach()
    except ports.PortTakenError:
        if asked.host_is_us and asked.backend == "c10d":
            raise CommandError(f"port {asked.port} is taken, and is_host says that this node serves it") from None
        return None
    except OSError as error:
        raise CommandError(f"port {asked.port}: {error.strerror}") from error


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Say each text only once."""
    return functools.lru_cache(maxsize=None)(say)
