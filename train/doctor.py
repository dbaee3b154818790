"""Print versions, disks, network paths, clock, arithmetic and links as JSON lines; run by `distlaunch doctor`.

    torchrun --nproc-per-node 2 doctor.py [--seconds 5]

This script judges nothing; `distlaunch doctor` compares the nodes. Needs only torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from collectives import join
from comm import links, pairs, paths
from comm.leave import leave
from torch.distributed.rendezvous import rendezvous

PREFIX = "doctor: "
"""Marks the report among a rank's other output."""

_MANY = 16
"""Above this number of ranks, each pair exchanges less, since there are many pairs."""

_MEET = timedelta(seconds=60)
_PATIENCE_S = 240.0
"""How long one exchange over a slow link may take."""


def versions() -> dict[str, str]:
    """Versions, and the GPU's name, which must match on all nodes."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else ""  # type: ignore[no-untyped-call]
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "nccl": nccl,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    }


def disk(path: str) -> dict[str, Any]:
    """Free and total bytes of the disk at `path`, and the error if it cannot be written."""
    found: dict[str, Any] = {"free": None, "total": None, "error": None}
    try:
        usage = shutil.disk_usage(path)
        found.update(free=usage.free, total=usage.total)
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(b"\0" * (1 << 20))
            file.flush()
    except OSError as error:
        found["error"] = error.strerror or str(error)
    return found


def clock_offset_s(rank: int) -> float:
    """This host's clock minus rank 0's, from the exchange with the shortest round trip, as in NTP."""
    best, offset = float("inf"), 0.0
    for peer in range(1, dist.get_world_size()):
        for _ in range(5):
            if rank == peer:
                sent = time.time()
                told = _exchange(sent, 0)
                took = time.time() - sent
                if took < best:
                    best, offset = took, sent + took / 2 - told
            elif rank == 0:
                _answer(peer)
    return offset


def _exchange(value: float, peer: int) -> float:
    box = torch.tensor([value], dtype=torch.float64)
    dist.send(box, peer, group=_gloo())
    dist.recv(box, peer, group=_gloo())
    return box.item()


def _answer(peer: int) -> None:
    box = torch.empty(1, dtype=torch.float64)
    dist.recv(box, peer, group=_gloo())
    box[0] = time.time()
    dist.send(box, peer, group=_gloo())


_groups: list[Any] = []


def _gloo() -> Any:
    """The gloo group, for exchanges whose timing must not wait for a GPU."""
    return _groups[0]


def gemm_tflops(device: torch.device, seconds: float) -> float:
    """The median rate of a square matrix product, run for `seconds`: bfloat16 on a GPU, float32 on one CPU thread."""
    on_gpu = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_gpu else (512, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    rates: list[float] = []
    limit = time.monotonic() + seconds
    while time.monotonic() < limit or len(rates) < 4:
        began = time.perf_counter()
        for _ in range(4):
            torch.matmul(a, b)
        if on_gpu:
            torch.cuda.synchronize()
        rates.append(4 * 2 * size**3 / (time.perf_counter() - began) / 1e12)
    return statistics.median(rates[1:])


def meet(report: dict[str, Any]) -> Any:
    """The store of all ranks; a rank that cannot reach it reports the port."""
    rank = int(report["rank"])
    try:  # rank 0 waits longer, so that the others can report why they did not connect
        return next(rendezvous("env://", timeout=_MEET * (1 if rank else 2)))[0]
    except (RuntimeError, ValueError) as error:
        if rank:
            why = "refused" if "refused" in str(error) else "no answer"
            report["paths"] = {"blocked": [[0, f"{os.environ['MASTER_PORT']} (MASTER_PORT)", why]]}
            say(report)
        raise


def look_at_paths(store: Any, report: dict[str, Any]) -> bool:
    """Add the network paths between nodes to the report; return whether a process group can be formed."""
    node, nodes, master = report["node"], int(os.environ.get("GROUP_WORLD_SIZE", "1")), os.environ["MASTER_ADDR"]
    if report["local_rank"] == 0:
        report["paths"] = found = paths.look(store, node, nodes, master)
        store.set(f"doctor/{node}", "stuck" if found["apart"] else "free")
    names = [f"doctor/{other}" for other in range(nodes)]
    store.wait(names, _MEET * 5)
    return all(store.get(name) == b"free" for name in names)


def say(report: dict[str, Any]) -> None:
    """Print the report as one line; a rank's later line supersedes its earlier ones."""
    sys.stdout.write(PREFIX + json.dumps(report) + "\n")
    sys.stdout.flush()


def compare(report: dict[str, Any], store: Any, device: torch.device, chosen: argparse.Namespace) -> None:
    """Add to the report what needs all ranks: clocks, simultaneous arithmetic, pairs."""
    join("auto", store, timedelta(seconds=chosen.seconds + _PATIENCE_S))
    _groups.append(
        None if device.type == "cpu" else dist.new_group(backend="gloo")
    )  # the default group is over gloo already
    rank = dist.get_rank()
    where = links.hosts()
    report["machine"] = where[rank]
    report["clock_offset_s"] = clock_offset_s(rank)
    dist.barrier(group=_gloo())
    report["gemm_tflops"] = gemm_tflops(device, chosen.seconds)
    many = dist.get_world_size() > _MANY
    size = chosen.size or (1 << 20 if many and device.type == "cpu" else 4 << 20)
    matrix = pairs.measure(device, where, size_bytes=size, repeats=3 if many else 5)
    report["gbytes_per_s"], report["latency_s"] = matrix.gbytes_per_s[rank], matrix.latency_s[rank]
    say(report)
    dist.barrier(group=_gloo())
    _groups.clear()
    leave()


def main() -> int:
    """Print the report: first each node's own facts, then the paths between nodes, then their speeds."""
    parser = argparse.ArgumentParser(
        prog="doctor.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of arithmetic")
    parser.add_argument(
        "--size", type=int, default=0, help="bytes that each pair of ranks exchanges; 0: 4 MiB, for many ranks less"
    )
    parser.add_argument("--disk", action="append", default=[], metavar="DIRECTORY", help="look at this one, too")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    paths.allow_files()
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    report: dict[str, Any] = {
        "rank": rank,
        "local_rank": local_rank,
        "host": socket.gethostname(),
        "versions": versions(),
    }
    report["node"] = int(os.environ.get("GROUP_RANK", "0"))
    directories = [os.getcwd(), tempfile.gettempdir(), "/dev/shm", *chosen.disk]  # noqa: S108 - its size is the question
    report["disks"] = {path: disk(path) for path in dict.fromkeys(directories)} if local_rank == 0 else {}
    say(report)
    store = meet(report) if "RANK" in os.environ else None
    together = store is None or look_at_paths(store, report)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if together:
        compare(report, store, device, chosen)
    else:
        report["gemm_tflops"] = gemm_tflops(device, chosen.seconds)
        say(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
