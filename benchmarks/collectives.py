"""What collectives.py measures against a bare loop over torch: the tool must not slow down what it measures.

    python benchmarks/collectives.py [--ranks 2] [--sizes 64K,1M,16M] [--rounds 60]

Both run in the same processes, in turns, round by round: on a busy machine two separate runs differ by more than the tool could.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = 0.03
"""So much may the busbw differ, either way."""


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
        iterations = measure(operation, size, Manner(device, seconds=0.05)).iterations
        manner = Manner(device, iterations=iterations, check=False)
        bare = torch.zeros(size // 4)

        def loop(bare: torch.Tensor = bare, iterations: int = iterations, manner: Manner = manner) -> float:
            for _ in range(manner.warmup):
                dist.all_reduce(bare)
            dist.barrier()
            began = time.perf_counter()
            for _ in range(iterations):
                dist.all_reduce(bare)
            mine = torch.tensor([(time.perf_counter() - began) / iterations], dtype=torch.float64)
            dist.all_reduce(mine)
            return bare.numel() * 4 / (mine.item() / ranks) / 1e9 * 2 * (ranks - 1) / ranks

        ratios = []
        for number in range(rounds):
            first = loop() if number % 2 else 0.0  # each goes first in every other round
            ours = measure(operation, size, manner).busbw
            ratios.append(ours / (first or loop()))
        box = [statistics.median(ratios)]
        dist.broadcast_object_list(box, src=0)  # so that all ranks end alike
        met = abs(box[0] - 1) <= TARGET
        collectives.say(
            f"all_reduce {text:>5} on {ranks} gloo ranks, {rounds} rounds: busbw ratio collectives.py / bare loop {box[0]:.3f} "
            f"(target within {TARGET:.0%}: {'met' if met else 'MISSED'})"
        )
    dist.destroy_process_group()


def main() -> int:
    """Start the ranks with torchrun, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="64K,1M,16M")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    if "RANK" in os.environ:
        compare(options.sizes.split(","), options.rounds)
        return 0
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    argv = [*run, __file__, "--sizes", options.sizes, "--rounds", str(options.rounds)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(argv, env=env, timeout=1800, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
