"""Rendezvous of nodes that an unknown scheduler has started, each with torchrun's options."""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.network import ports, routes
from launcher.errors import CommandError
from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.messages import Rendezvous

C10D_PORT = 29400
STATIC_PORT = 29500
KEY = "DISTLAUNCH_KEY"
_PATIENCE_S = 2.0
_SHORTEST_KEY = 32


class Place(NamedTuple):
    """This node's place in the run."""

    node_rank: int
    meets: Rendezvous
    """The agents' rendezvous, as `Job.rendezvous`."""


def endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Host and port, as torchrun reads them; `localhost` for empty text."""
    text = text.strip()
    if not text:
        return "localhost", default_port
    host, colon, port = (text, "", "") if text[0] + text[-1] == "[]" else text.rpartition(":")
    if not colon:
        host = text
    host = host[1:-1] if host[:1] + host[-1:] == "[]" else host
    if colon and (not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 0xFFFF):
        raise TorchrunUsageError(f"rendezvous endpoint {text!r}: the port is a number from 0 to 65535")
    if not re.fullmatch(r"[\w.:-]+", host):
        raise TorchrunUsageError(f"rendezvous endpoint {text!r}: write HOST[:PORT]")
    return host, int(port) if colon else default_port


def settings(text: str) -> dict[str, str]:
    """Parse --rdzv-conf: `KEY=VALUE,...`."""
    found = {}
    for part in text.strip().split(",") if text.strip() else []:
        name, _, value = (word.strip() for word in part.partition("="))
        if not name or not value:
            raise TorchrunUsageError(f"--rdzv-conf {text!r}: write KEY=VALUE, with commas between several")
        found[name] = value
    return found


def key(env: Mapping[str, str], run: str, port: int) -> str:
    """The run's secret: as given, else derived from what torchrun's nodes share."""
    given = env.get(KEY)
    if given is None:
        import hashlib  # only runs of several nodes need it

        return hashlib.sha256(f"distlaunch torchrun\0{run}\0{port}".encode(errors="surrogateescape")).hexdigest()
    if len(given) < _SHORTEST_KEY:
        raise TorchrunUsageError(
            f"{KEY} is not a key: it must be {_SHORTEST_KEY} random characters or more, the same on all nodes"
        )
    return given


def is_here(host: str) -> bool:
    """Whether the host is a name or an address of this machine."""
    if host in ("localhost", socket.gethostname()):
        return True
    own = {"127.0.0.1", "::1", *(address for addresses in routes.own_addresses().values() for address in addresses)}
    return any(address in own or address.startswith("127.") for address in routes.resolve(host))


def c10d(
    host: str, port: int, *, host_is_us: bool | None, key: str, limit_s: float, say: Callable[[str], None]
) -> Place:
    """Node 0 listens at the endpoint; the other nodes get their ranks in the order in which they connect to it.

    A node on the endpoint's host becomes node 0 once the port is free: what listens there may be left from another run.
    """
    from launcher.agent.store.client import Client
    from launcher.agent.store.interface import StoreError

    here = is_here(host) if host_is_us is None else host_is_us
    began, patience_s, told = time.monotonic(), _PATIENCE_S, False
    while True:
        if here:
            try:
                return Place(0, {"addr": host, "port": port, "everywhere": True, "fd": ports.listening(port).detach()})
            except OSError as error:
                if host_is_us:
                    raise CommandError(f"{error.strerror}, and is_host says that this node serves it") from None
        left = limit_s - (time.monotonic() - began)
        try:
            store = Client(host, port, key=key, timeout_s=min(patience_s, left), comes_back=True, tell=say)
            break
        except StoreError as error:
            if left <= patience_s:
                hint = "is node 0 running, with the same --rdzv-endpoint and --rdzv-id?"
                raise CommandError(
                    f"node 0 did not answer at {host}:{port} in {limit_s:.0f} s: {error}", hint=hint
                ) from error
            if not told:
                say(f"waits for node 0 at {host}:{port}, for at most {limit_s:.0f} s")
            told = True
            patience_s = patience_s * 2 if here else left
    rank, addr = store.add("arrived", 1), store.peer
    store.close()
    return Place(rank, {"addr": addr, "port": port, "everywhere": True})
