"""What a run of many nodes costs its control plane: calls and bytes of the run's store, from start to verdict.

    python benchmarks/scale.py [--nodes 64,256,1000] [--rest 20] [--elastic] [--agents 16,64]

The code is that of real nodes: each joins, meets all others, tries their addresses, watches, and learns the verdict.
Many nodes share a process, with a thread for each, and node 0 with the run's store has a process of its own. Each node
has a loopback address and its own connections. No workers are started.

Calls are counted at each node, bytes at node 0's sockets, both with all that authentication adds. They do not depend
on how fast this machine is; seconds do, as all nodes share its CPUs. The slope of a column is that of its logarithm
over the logarithm of the number of nodes: 0 is constant, 1 is linear, 2 is quadratic.

With --agents, runs of real agents and fork servers follow, with a worker each: whole runs, the memory of a node, and
the seconds until the last agent has ended after a worker has failed, an agent was killed, and `cancel`, and until the
last worker has started again after one has failed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _agents
from benchmarks._nodes import Counted, Share, serve
from launcher.agent.job import Job
from launcher.agent.network import ports

if TYPE_CHECKING:
    from collections.abc import Sequence

CALLS, CALLS_EACH = 50, 5
BYTES = 2048
CALLS_AT_REST = 0.2
VERDICT_S = 1.0
PER_PROCESS = 125


class Result(NamedTuple):
    """One size."""

    nodes: int
    start_s: float
    cpu_s: float
    """Of node 0, in the same time."""

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


class Shares:
    """All processes of one size, the first with node 0."""

    def __init__(self, nodes: int, contract: str, *, elastic: bool) -> None:
        job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=nodes, max_nodes=nodes)
        job = job._replace(key="k" * 32, contract=contract, replaceable=elastic)
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


def measure(nodes: int, rest_s: float, contract: str = "torchrun", *, elastic: bool = False) -> Result:
    """Start a run of this size, let it rest, and end it by the failure of one node."""
    shares = Shares(nodes, contract, elastic=elastic)
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
    until_start = (start_s, server.cpu_s - empty.cpu_s, calls, moved / nodes / 1024)
    return Result(nodes, *until_start, calls_at_rest, at_rest, cpu, verdict_s, rested.rss_mib - empty.rss_mib)


def slope(results: Sequence[Any], name: str) -> str:
    """By which power of the number of nodes a column grows: least squares over the logarithms."""
    points = [(math.log(each.nodes), math.log(getattr(each, name))) for each in results if getattr(each, name) > 0]
    if len(points) < 2:
        return "none"
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    width = sum((x - x_mean) ** 2 for x, _ in points)
    return f"{sum((x - x_mean) * (y - y_mean) for x, y in points) / width:.2f}"


def show(results: Sequence[Result]) -> None:
    """Print the table, and the ratios to what is to be reached."""
    print("| nodes | start s | CPU s | calls | KiB | calls/s, rest | B/s, rest | CPU %, rest | verdict s | MiB |")
    print("| --- " * 10 + "|")
    digits = (0, 2, 2, 1, 1, 3, 1, 2, 3, 1)
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


def show_agents(results: Sequence[_agents.Agents]) -> None:
    """Print the table of real agents."""
    print("| nodes | whole run s | MiB/node | failure s | killed agent s | restart s | cancel s |")
    print("| --- " * 7 + "|")
    for each in results:
        print(f"| {each.nodes} | " + " | ".join(f"{value:.2f}" for value in each[1:]) + " |")
    print("| slope | " + " | ".join(slope(results, name) for name in _agents.Agents._fields[1:]) + " |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="64,256,1000", help='sizes of the runs; "" for none')
    parser.add_argument("--rest", type=float, default=20.0, metavar="SECONDS", help="how long each run is left alone")
    parser.add_argument("--agents", default="", help="sizes of runs with real agents; each takes about 18 MiB")
    parser.add_argument("--contract", default="torchrun", help="others tell each node the addresses of all")
    parser.add_argument("--elastic", action="store_true", help="nodes that may be replaced by others")
    options = parser.parse_args()
    if options.nodes:
        about: dict[str, Any] = {"contract": options.contract, "elastic": options.elastic}
        show([measure(int(nodes), options.rest, **about) for nodes in options.nodes.split(",")])
    if options.agents:
        show_agents([_agents.measure(int(nodes)) for nodes in options.agents.split(",")])


if __name__ == "__main__":
    main()
