"""Two ranks or more: an all_reduce, then the last rank is killed; after the restart, one more all_reduce.

Ranks write times (unix seconds) to the directory that BENCH_DIRECTORY names: `crash`, and `again-RANK` after the first
sum of the restart.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist


def reduce() -> None:
    """Run one all_reduce, and check its result."""
    value = torch.ones(1)
    dist.all_reduce(value)
    if value.item() != dist.get_world_size():
        raise RuntimeError(f"all_reduce of ones gave {value.item()}")


def main() -> None:
    """Train, crash, train again."""
    directory, restarts = Path(os.environ["BENCH_DIRECTORY"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    reduce()
    if restarts:
        (directory / f"again-{rank}").write_text(repr(time.time()))
    elif rank == world_size - 1:
        (directory / "crash").write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    reduce()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
