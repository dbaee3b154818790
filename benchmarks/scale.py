"""What a run of many nodes costs its control plane: calls and bytes of the run's store, from start to verdict.

    python benchmarks/scale.py [--nodes 64,256,1000] [--rest 20]

The code is that of real nodes: each joins, meets all others, tries their addresses, watches, and learns the verdict.
Many nodes share a process, with a thread for each, and node 0 with the run's store has a process of its own. Each node
has a loopback address and its own connections. No workers are started.

Calls are counted at each node, bytes at node 0's sockets, both with all that authentication adds. They do not depend
on how fast this machine is; seconds do, as all nodes share its CPUs. The slope of a column is that of its logarithm
over the logarithm of the number of nodes: 0 is constant, 1 is linear, 2 is quadratic.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcher.agent.group import process
from launcher.agent.group.rendezvous import FixedNodes
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.client import Client
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT_S = 600.0
LOOK_S = 0.02
CALLS, CALLS_EACH = 50, 5
BYTES = 2048
CALLS_AT_REST = 0.2
VERDICT_S = 1.0
PER_PROCESS = 125
STACK_BYTES = 256 << 10


class Counts(NamedTuple):
    """What a process has counted so far."""

    calls: int
    sent: int
    received: int
    cpu_s: float
    rss_mib: float
    threads: int


class Result(NamedTuple):
    """One size."""

    nodes: int
    start_s: float
    calls: float
    """Of a node, from its start to the first worker."""

    kib: float
    """Through node 0, for each node, in the same time."""

    calls_at_rest: float
    bytes_at_rest: float
    """Of a node, per second."""

    cpu_at_rest: float
    """Of node 0, in percent of one CPU."""

    verdict_s: float
    mib: float
    """Resident memory of node 0's process, beyond that of one without clients."""


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
        self.nodes: dict[int, FixedNodes] = {}
        self.errors: list[str] = []
        self._job, self._ranks, self._port, self._listener = job, ranks, port, listener

    def start(self) -> None:
        """Bring all nodes to where they would start their workers."""
        threading.stack_size(STACK_BYTES)
        threads = [threading.Thread(target=self._node, args=(rank,), daemon=True) for rank in self._ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        if self.errors:
            raise RuntimeError(self.errors[0])

    def _connected(self) -> Any:
        if self._listener is not None:
            return Server(self._listener, self._job.key, nodes=self._job.max_nodes)
        return CountingClient("127.0.0.1", self._port, key=self._job.key, timeout_s=LIMIT_S)

    def _node(self, rank: int) -> None:
        try:
            setup: Any = {"host": f"n{rank}", "node_rank": rank}
            store = process._present_store(self._job, setup, None, self._connected)  # type: ignore[arg-type]
            watched = self._connected() if self._listener is None else store
            nodes = FixedNodes(self._job, rank, f"n{rank}", "127.0.0.1", store, watched, lambda *_, **__: None)
            nodes.network.fabric = fabric(rank)
            nodes.next_rendezvous(1)
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


class Shares:
    """All processes of one size, the first with node 0."""

    def __init__(self, nodes: int) -> None:
        job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=nodes, max_nodes=nodes)._replace(key="k" * 32)
        listener = Counted(fileno=ports.listening(only="127.0.0.1").detach())
        port, context = ports.port_of(listener), multiprocessing.get_context("fork")
        cuts = [range(1), *(range(first, min(nodes, first + PER_PROCESS)) for first in range(1, nodes, PER_PROCESS))]
        self.channels = []
        for ranks in cuts:
            ours, theirs = context.Pipe()
            share = Share(job, ranks, port, None if ranks[0] else listener)
            context.Process(target=self._run, args=(ours, theirs, share), daemon=True).start()
            theirs.close()
            self.channels.append(ours)
        listener.close()

    def _run(self, ours: Any, theirs: Any, share: Share) -> None:
        for channel in (ours, *self.channels):
            channel.close()
        if share._ranks[0]:
            share._listener = None
        serve(theirs, share)

    def ask(self, name: str) -> list[Any]:
        """Have all processes do this at the same time; their answers."""
        for channel in self.channels:
            channel.send(name)
        return [self._answer(channel) for channel in self.channels]

    def ask_last(self, name: str) -> Any:
        """Have the last process do this."""
        self.channels[-1].send(name)
        return self._answer(self.channels[-1])

    @staticmethod
    def _answer(channel: Any) -> Any:
        answer = channel.recv()
        if isinstance(answer, Exception):
            raise SystemExit(f"{type(answer).__name__}: {answer}")
        return answer

    def close(self) -> None:
        """End all processes."""
        for channel in self.channels:
            channel.close()


def measure(nodes: int, rest_s: float) -> Result:
    """Start a run of this size, let it rest, and end it by the failure of one node."""
    shares = Shares(nodes)
    try:
        empty, began = shares.ask("counts")[0], time.monotonic()
        shares.ask("start")
        start_s, (server, *others) = time.monotonic() - began, shares.ask("counts")
        time.sleep(rest_s)
        rested, *others_rested = shares.ask("counts")
        failed_at = shares.ask_last("publish")
        verdict_s = max(shares.ask("await_verdict")) - failed_at
    finally:
        shares.close()
    calls = sum(each.calls for each in others) / (nodes - 1)
    calls_at_rest = (sum(each.calls for each in others_rested) / (nodes - 1) - calls) / rest_s
    moved, moved_later = (each.sent + each.received for each in (server, rested))
    at_rest = (moved_later - moved) / (nodes - 1) / rest_s
    cpu = 100 * (rested.cpu_s - server.cpu_s) / rest_s
    mib = rested.rss_mib - empty.rss_mib
    return Result(nodes, start_s, calls, moved / nodes / 1024, calls_at_rest, at_rest, cpu, verdict_s, mib)


def slope(results: Sequence[Result], name: str) -> str:
    """By which power of the number of nodes a column grows: least squares over the logarithms."""
    points = [(math.log(each.nodes), math.log(getattr(each, name))) for each in results if getattr(each, name) > 0]
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    width = sum((x - x_mean) ** 2 for x, _ in points)
    return f"{sum((x - x_mean) * (y - y_mean) for x, y in points) / width:.2f}" if width else "none"


def show(results: Sequence[Result]) -> None:
    """Print the table, and the ratios to what is to be reached."""
    print("| nodes | start s | calls/node | KiB/node | calls/s, rest | bytes/s, rest | CPU %, rest | verdict s | MiB |")
    print("| --- " * 9 + "|")
    digits = (0, 2, 1, 1, 3, 1, 2, 3, 1)
    for each in results:
        print("| " + " | ".join(f"{value:.{count}f}" for value, count in zip(each, digits, strict=True)) + " |")
    print("| slope | " + " | ".join(slope(results, name) for name in Result._fields[1:]) + " |")
    for each in results:
        power = math.log2(each.nodes)
        ratios = {
            "calls": each.calls / (CALLS + CALLS_EACH * power),
            "bytes": each.kib * 1024 / (BYTES * power),
            "calls at rest": each.calls_at_rest / CALLS_AT_REST,
            "verdict": each.verdict_s / VERDICT_S,
        }
        told = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
        print(f"{each.nodes} nodes, ratio to what is allowed (to reach: at most 1): {told}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="64,256,1000", help="sizes of the runs")
    parser.add_argument("--rest", type=float, default=20.0, metavar="SECONDS", help="how long each run is left alone")
    options = parser.parse_args()
    show([measure(int(nodes), options.rest) for nodes in options.nodes.split(",")])


if __name__ == "__main__":
    main()
