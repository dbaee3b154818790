"""Two ranks or more: an all_reduce, then the last rank is killed; started again, one more all_reduce.

Each leaves its times (unix seconds) in the directory that BENCH_DIRECTORY names: `crash`, and after its first sum of the restart
`again-RANK`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist


def reduce() -> None:
    """One all_reduce, whose result must be right."""
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
