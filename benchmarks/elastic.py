"""What an elastic run costs its nodes to meet, and while they run: distlaunch's rendezvous, and torchelastic's.

    python benchmarks/elastic.py [--nodes 8,32,64] [--rounds 3] [--rest 5] [--no-peers]

All nodes ask for a place at once, and have met when the last one has it. Then they run: each looks whether others are
waiting, as torchrun does ten times a second (`--monitor-interval`), and as distlaunch's watch does. Many nodes share a
process, and node 0 with the store has one of its own, as in `scale.py`. torchelastic's nodes have a connection each
to torch's TCPStore, with the backend that torchrun uses (c10d).

Calls are those to the store. Bytes are those of distlaunch's sockets, with all that authentication adds, and those of
torchelastic's state alone, without what TCPStore adds. Neither depends on how fast this machine is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _nodes, scale
from benchmarks._measure import ratios, verdict
from launcher.agent.network import ports

if TYPE_CHECKING:
    from collections.abc import Sequence

MONITOR_S = 0.1
"""torchrun's default."""

LIMIT_S = 120
NAMES = ("start_s", "calls", "kib", "calls_at_rest", "bytes_at_rest")


class Met(NamedTuple):
    """One meeting; calls and bytes are those of a node."""

    start_s: float
    calls: float
    kib: float
    calls_at_rest: float
    bytes_at_rest: float


class Tally:
    """What torchelastic's nodes have asked of their store."""

    def __init__(self) -> None:
        self.calls = self.bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count one call."""
        with self._lock:
            self.calls, self.bytes = self.calls + 1, self.bytes + size


def ours(nodes: int, rest_s: float) -> Met:
    """distlaunch's nodes."""
    found = scale.measure(nodes, rest_s, elastic=True)
    return Met(*(getattr(found, name) for name in NAMES))


def torchelastic(nodes: int, rest_s: float) -> Met:
    """torchelastic's, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    process = context.Process(target=_meet, args=(nodes, rest_s, answers), daemon=True)
    process.start()
    try:
        found = answers.get(timeout=LIMIT_S + rest_s)
    except queue.Empty:
        found = f"{nodes} nodes have not met in {LIMIT_S} s"
    finally:
        process.kill()
    if isinstance(found, str):
        raise SystemExit(f"torchelastic: {found}")
    return Met(*found)


def _meet(nodes: int, rest_s: float, answers: Any) -> None:
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

    tally = Tally()

    class Counting(C10dRendezvousBackend):  # type: ignore[misc, unused-ignore]
        def _call_store(self, store_op: str, *args: Any, **kwargs: Any) -> Any:
            answer = super()._call_store(store_op, *args, **kwargs)
            tally.add(len(answer or b"") + sum(len(arg) for arg in args))
            return answer

    listener = ports.listening(only="127.0.0.1")
    port = ports.port_of(listener)
    limit = timedelta(seconds=LIMIT_S)
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    stores = [TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False) for _ in range(nodes - 1)]
    handlers = [
        DynamicRendezvousHandler.from_backend(
            "r", store, Counting(store, "r"), 1, nodes, _nodes.address(rank), RendezvousTimeout(limit, limit)
        )
        for rank, store in enumerate([server, *stores])
    ]
    errors: list[str] = []
    before, ends = (tally.calls, tally.bytes), threading.Event()
    met = threading.Barrier(nodes + 1)

    def node(handler: Any) -> None:
        try:
            handler.next_rendezvous()
            met.wait(LIMIT_S)
            while not ends.wait(MONITOR_S):
                handler.num_nodes_waiting()
        except Exception as error:  # noqa: BLE001 - reported by the measuring process
            errors.append(f"{type(error).__name__}: {error}")
            met.abort()

    began = time.monotonic()
    for handler in handlers:
        threading.Thread(target=node, args=(handler,), daemon=True).start()
    try:
        met.wait(LIMIT_S)
    except threading.BrokenBarrierError:
        answers.put(errors[0] if errors else "it took too long")
        return
    start_s, calls, size = time.monotonic() - began, tally.calls - before[0], tally.bytes - before[1]
    time.sleep(rest_s)
    at_rest = (tally.calls - before[0] - calls) / nodes / rest_s, (tally.bytes - before[1] - size) / nodes / rest_s
    answers.put((start_s, calls / nodes, size / nodes / 1024, *at_rest))
    ends.wait()


def show(nodes: int, taken: dict[str, list[Met]]) -> None:
    """Print the medians, and the paired ratios."""
    for name, found in taken.items():
        values = [statistics.median(getattr(each, part) for each in found) for part in NAMES]
        print("| {} | {} | {:.2f} | {:.1f} | {:.1f} | {:.3f} | {:,.0f} |".format(nodes, name, *values))
    if len(taken) > 1:
        mine, theirs = taken.values()
        told = []
        for part in NAMES:
            pairs = ratios([getattr(one, part) for one in mine], [getattr(one, part) for one in theirs])
            told.append(f"{part} {verdict(pairs)}")
        print(f"\n{nodes} nodes, ratio distlaunch / torchelastic: {'; '.join(told)}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,32,64", help="sizes of the runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=5.0, metavar="SECONDS", help="how long the nodes run")
    parser.add_argument("--no-peers", action="store_true", help="without torchelastic")
    options = parser.parse_args(argv)
    print("| nodes | | met s | calls | KiB | calls/s, running | B/s, running |")
    print("| --- " * 7 + "|")
    for nodes in map(int, options.nodes.split(",")):
        taken: dict[str, list[Met]] = {name: [] for name in ("distlaunch", "torchelastic")[: 2 - options.no_peers]}
        for _ in range(options.rounds):
            for name, found in taken.items():
                found.append((ours if name == "distlaunch" else torchelastic)(nodes, options.rest))
        show(nodes, taken)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of nodes still wait
