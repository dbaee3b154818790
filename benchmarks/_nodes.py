"""Many nodes of a run in few processes: real ones up to where they would start their workers, and counted."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.agent.group import process
from launcher.agent.group.elastic import ElasticNodes
from launcher.agent.group.rendezvous import FixedNodes
from launcher.agent.store.client import Client
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.job import Job

LIMIT_S = 600.0
LOOK_S = 0.02
STACK_BYTES = 256 << 10
SWITCH_S = 0.5
"""Each thread that waits for the interpreter's lock looks for it this often: with many nodes in one process, and few
CPUs, nothing else would happen. They do not compute for long, and give it away when they wait."""


class Counts(NamedTuple):
    """What a process has counted so far."""

    calls: int
    sent: int
    received: int
    cpu_s: float
    rss_mib: float
    threads: int


class Counted(socket.socket):
    """A connection that counts what goes through it, for all connections of this process."""

    messages = sent = received = 0

    def sendall(self, data: Any, *flags: int) -> None:
        """Count one message."""
        Counted.messages += 1
        Counted.sent += len(data)
        super().sendall(data, *flags)

    def send(self, data: Any, *flags: int) -> int:
        """Count what was accepted."""
        count = super().send(data, *flags)
        Counted.sent += count
        return count

    def recv(self, *args: int) -> bytes:
        """Count what has come."""
        data = super().recv(*args)
        Counted.received += len(data)
        return data

    def accept(self) -> tuple[socket.socket, Any]:
        """A connection that counts, too."""
        fd, address = self._accept()  # type: ignore[attr-defined]
        return Counted(fileno=fd), address


class CountingClient(Client):
    """A connection to the run's store whose messages are counted; those of its greeting are not."""

    def _greet(self, key: str, limit: float) -> Any:
        session = super()._greet(key, limit)
        self._sock = Counted(fileno=self._sock.detach())
        return session


class Share:
    """The nodes of one process."""

    def __init__(self, job: Job, ranks: Sequence[int], port: int, listener: socket.socket | None) -> None:
        self.nodes: dict[int, FixedNodes | ElasticNodes] = {}
        self.errors: list[str] = []
        self._job, self._ranks, self._port, self._listener = job, ranks, port, listener

    def start(self) -> None:
        """Bring all nodes to where they would start their workers."""
        threading.stack_size(STACK_BYTES)
        if self._listener is None:
            sys.setswitchinterval(SWITCH_S)
        threads = [threading.Thread(target=self._node, args=(rank,), daemon=True) for rank in self._ranks]
        for thread in threads:
            thread.start()
        limit = time.monotonic() + LIMIT_S
        while any(thread.is_alive() for thread in threads) and not self.errors and time.monotonic() < limit:
            time.sleep(LOOK_S)
        if self.errors:
            raise RuntimeError(self.errors[0])
        if waiting := sum(thread.is_alive() for thread in threads):
            raise TimeoutError(f"{waiting} of {len(threads)} nodes of one process have not met in {LIMIT_S:.0f} s")

    def _connected(self) -> Any:
        if self._listener is not None:
            return Server(self._listener, self._job.key, nodes=self._job.max_nodes)
        return CountingClient("127.0.0.1", self._port, key=self._job.key, timeout_s=LIMIT_S)

    def _node(self, rank: int) -> None:
        try:
            setup: Any = {"host": f"n{rank}", "node_rank": rank}
            kind: Any = FixedNodes
            if self._job.elastic:
                kind, store = ElasticNodes, self._connected()
            else:
                store = process._present_store(self._job, setup, None, self._connected)  # type: ignore[arg-type]
            nodes = kind(self._job, rank, f"n{rank}", "127.0.0.1", store, lambda *_, **__: None)
            nodes.network.fabric = fabric(rank)
            nodes.next_rendezvous(1)
            if self._job.contract != "torchrun":
                nodes.exchange({"framework": ""})
            self.nodes[rank] = nodes
        except Exception as error:  # noqa: BLE001 - reported by the process
            self.errors.append(f"node {rank}: {type(error).__name__}: {error}")

    def counts(self) -> Counts:
        """What was counted so far."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        about = (Counted.messages, Counted.sent, Counted.received, time.process_time(), mib)
        return Counts(*about, threading.active_count())

    def publish(self) -> float:
        """Have one node end the run; when that began."""
        began = time.monotonic()
        max(self.nodes.items())[1].publish("fail", cause=None)
        return began

    def await_verdict(self) -> float:
        """When the last of these nodes has learned the verdict."""
        limit = time.monotonic() + LIMIT_S
        while any(nodes.verdict is None for nodes in self.nodes.values()):
            if time.monotonic() > limit:
                raise TimeoutError("the verdict has not come")
            time.sleep(LOOK_S)
        return time.monotonic()


def address(rank: int) -> str:
    """A loopback address for each node."""
    return f"127.{1 + rank // 62500}.{1 + rank // 250 % 250}.{1 + rank % 250}"


def fabric(rank: int) -> dict[str, Any]:
    """A node with one interface, for which no variable has to be set."""
    nothing: dict[str, Any] = {"variables": [], "notes": [], "nccl_default": [], "ucx_default": []}
    return {**nothing, "interfaces": {address(rank): "eth0"}, "gloo_default": "eth0"}


def serve(channel: Any, share: Share) -> None:
    """Do what the measuring process asks for, until it hangs up."""
    steps: dict[str, Callable[[], Any]] = {
        name: getattr(share, name) for name in ("start", "counts", "publish", "await_verdict")
    }
    while True:
        try:
            name = channel.recv()
        except EOFError:
            os._exit(0)
        try:
            channel.send(steps[name]())
        except Exception as error:  # noqa: BLE001 - reported by the measuring process
            channel.send(error)
