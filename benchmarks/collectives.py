"""collectives.py against a bare loop over torch: the tool must not slow down what it measures.

    python benchmarks/collectives.py [--ranks 2] [--sizes 64K,1M,16M] [--rounds 200]

All run in the same processes, in short turns of rotating order: on a busy host, two separate runs differ by more
than the tool could. The bare loop runs twice in each round: its difference from itself is the noise.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = 0.03
"""Highest relative difference of the busbw, either way."""


def compare(sizes: list[str], rounds: int) -> None:
    """In a rank: time both in turns and print the ratios."""
    sys.path.insert(0, str(ROOT / "train"))
    import collectives
    import torch
    import torch.distributed as dist
    from comm.operations import OPERATIONS
    from comm.timing import Manner, measure

    device = collectives.join("gloo")
    operation, ranks = OPERATIONS["all_reduce"], dist.get_world_size()
    for text in sizes:
        size = collectives.size(text)
        iterations = measure(operation, size, Manner(device, seconds=0.02)).iterations
        manner = Manner(device, iterations=iterations, check=False)

        def loop(size: int = size, iterations: int = iterations, manner: Manner = manner) -> float:
            bare = torch.zeros(size // 4)  # allocated in each turn, like the tool's: its address makes a difference
            for _ in range(manner.warmup):
                dist.all_reduce(bare)
            dist.barrier()
            began = time.perf_counter()
            for _ in range(iterations):
                dist.all_reduce(bare)
            mine = torch.tensor([(time.perf_counter() - began) / iterations], dtype=torch.float64)
            dist.all_reduce(mine)
            return bare.numel() * 4 / (mine.item() / ranks) / 1e9 * 2 * (ranks - 1) / ranks

        def tool(size: int = size, manner: Manner = manner) -> float:
            return measure(operation, size, manner).busbw

        turns: list[Callable[[], float]] = [tool, loop, loop]
        ratios, noise = [], []
        for number in range(rounds):
            order = [(number + turn) % 3 for turn in range(3)]
            taken = dict(sorted((which, turns[which]()) for which in order))
            ratios.append(taken[0] / math.sqrt(taken[1] * taken[2]))
            noise.append(taken[1] / taken[2])
        box = [statistics.median(ratios), *_interval(ratios), statistics.median(noise), *_interval(noise)]
        dist.broadcast_object_list(box, src=0)  # so that all ranks agree
        met = abs(box[0] - 1) <= TARGET
        collectives.say(
            f"all_reduce {text:>5} on {ranks} gloo ranks, {rounds} rounds: "
            f"busbw ratio collectives.py / bare loop {box[0]:.3f} ({box[1]:.3f} to {box[2]:.3f}); "
            f"bare loop / itself {box[3]:.3f} ({box[4]:.3f} to {box[5]:.3f}) "
            f"(target within {TARGET:.0%}: {'met' if met else 'MISSED'})"
        )
    dist.destroy_process_group()


def _interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from the order of the values."""
    ordered, half = sorted(ratios), 0.98 * math.sqrt(len(ratios))
    last = len(ordered) - 1
    return ordered[max(0, round(last / 2 - half))], ordered[min(last, round(last / 2 + half))]


def main() -> int:
    """Start the ranks, or run as one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="64K,1M,16M")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    if "RANK" in os.environ:
        compare(options.sizes.split(","), options.rounds)
        return 0
    run = [sys.executable, "-m", "launcher", "local", "--nproc-per-node", str(options.ranks)]
    argv = [*run, __file__, "--sizes", options.sizes, "--rounds", str(options.rounds)]
    with tempfile.TemporaryDirectory() as scratch:
        env = {**environment(scratch), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(argv, env=env, timeout=1800, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
