"""The cost of the round in which the nodes of a run try one another's addresses, before the first worker starts.

    python benchmarks/reach.py [--nodes 64] [--rounds 7]

Every node is a process with a loopback address of its own; each round has its own store. Measured are the seconds
from when all nodes are ready until the last one finishes, and a node's CPU time, with all that it opens and answers.
On a real cluster, each node has its own CPUs; here all share this machine's, so the time is an upper bound. For
comparison, in turns with it, one process tries every pair's address one after the other, as a launcher that checked
each link itself would. All nodes must have found all others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import verdict
from launcher.agent.group import exploring
from launcher.agent.network import ports
from launcher.agent.store.client import Client
from launcher.agent.store.interface import is_met
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.store.interface import Known, Store

TARGET_S = 1.0
LIMIT_S = 60.0
KEY = "of no use to anybody"


def waited(what: str, store: Store, known: Mapping[str, Known], _: Callable[[], list[str]]) -> list[bytes | None]:
    """Wait as agents do."""
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        values = store.wait(known, limit - time.monotonic())
        if any(map(is_met, values, known.values())):
            return values
    raise SystemExit(f"waited {LIMIT_S:.0f} s for {what}")


def address(rank: int) -> str:
    """A loopback address for each node."""
    return f"127.0.{1 + rank // 250}.{1 + rank % 250}"


def node(port: int, rank: int, nodes: int, start: Any, answers: Any) -> None:
    """One node's part; reports when it finished, its CPU time, and whether it reached all others."""
    store = Client("127.0.0.1", port, key=KEY, timeout_s=LIMIT_S)
    start.wait(LIMIT_S)
    cpu = time.process_time()
    found = exploring.explore(store, rank, nodes, [address(rank)], waited)
    took, ended = time.process_time() - cpu, time.monotonic()
    answers.put((rank, ended, took, found.usable == [address(rank)] and not found.cut_off))


def one_round(nodes: int) -> tuple[float, float]:
    """Seconds from when all nodes are ready until the last one finishes, and the median CPU seconds of a node."""
    context = multiprocessing.get_context("fork")
    start, answers, listener = context.Barrier(nodes + 1), context.Queue(), ports.listening()
    about = (nodes, start, answers)
    running = [
        context.Process(target=node, args=(ports.port_of(listener), rank, *about), daemon=True) for rank in range(nodes)
    ]
    for process in running:
        process.start()
    # After the forks, which are safe only while there is one thread.
    Server(listener, KEY)
    start.wait(LIMIT_S)
    began = time.monotonic()
    told = [answers.get(timeout=LIMIT_S) for _ in running]
    for process in running:
        process.join(LIMIT_S)
    if not all(good for *_, good in told):
        raise SystemExit("some nodes were not reached")
    return max(ended for _, ended, *_ in told) - began, statistics.median(cpu for _, _, cpu, _ in told)


def from_one_place(nodes: int) -> float:
    """Seconds to try each pair's address from one process: n x (n - 1) connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        began = time.monotonic()
        for _ in range(nodes * (nodes - 1)):
            with socket.create_connection(server.getsockname()[:2], timeout=5):
                server.accept()[0].close()
        return time.monotonic() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    walls, cpus, ratios = [], [], []
    for _ in range(options.rounds):
        wall, cpu = one_round(options.nodes)
        walls.append(wall)
        cpus.append(cpu)
        ratios.append(wall / from_one_place(options.nodes))
    print(
        json.dumps({"nodes": options.nodes, "wall_s": [round(wall, 3) for wall in walls], "processors": os.cpu_count()})
    )
    print(f"CPU of a node: {statistics.median(cpus) * 1000:.0f} ms; all nodes together, on this machine's CPUs:")
    print(f"{options.nodes} nodes, seconds of the round: {verdict(walls, at_most=TARGET_S)}")
    print(f"{options.nodes} nodes, the round / all pairs from one place, ratio: {verdict(ratios)}")


if __name__ == "__main__":
    main()
