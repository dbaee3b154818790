"""The smallest distributed program: one all_reduce with a known result.

    torchrun --nproc-per-node 4 reduce.py

Rank r contributes r + 1; after an all_reduce(SUM), every rank must hold world_size * (world_size + 1) / 2: 10 with 4
ranks. Each rank prints its value before and after in one line, and exits with status 1 if the sum is wrong. Runs over
NCCL on GPUs, over gloo elsewhere or with CUDA_VISIBLE_DEVICES= (empty). Without torchrun, the world is this process
alone. Needs only torch.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

import torch
import torch.distributed as dist


def problem(total: int, world_size: int) -> str | None:
    """What is wrong with `total` as the sum of 1 to `world_size`; None if it is right."""
    expected = world_size * (world_size + 1) // 2
    if total == expected:
        return None
    return f"all_reduce gave {total}, but the sum of 1 to {world_size} is {expected}"


def join() -> torch.device:
    """Join torchrun's process group, or create one for this process alone; return this rank's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    if on_gpu and local_rank >= torch.cuda.device_count():
        raise SystemExit(
            f"reduce.py: error: local rank {local_rank} on {socket.gethostname()} has no GPU of its own: "
            f"the host shows {torch.cuda.device_count()}. "
            "Start as many ranks, or set CUDA_VISIBLE_DEVICES= to reduce on the CPU."
        )
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    store = None if launched else dist.HashStore()  # type: ignore[attr-defined]  # public, but missing from torch's exports
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=-1 if launched else 0,
        world_size=-1 if launched else 1,
        device_id=device if on_gpu else None,
    )
    return device


def main() -> int:
    """Reduce, print and check; return the exit status."""
    as_written = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(prog="reduce.py", description=__doc__, formatter_class=as_written).parse_args()
    device = join()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    value = torch.tensor(rank + 1, device=device)
    before = value.item()
    dist.all_reduce(value)
    after = int(value.item())
    dist.destroy_process_group()

    me = f"rank {rank}/{world_size} on {socket.gethostname()}"
    sys.stdout.write(f"{me}: before {before}, after {after}\n")
    sys.stdout.flush()
    wrong = problem(after, world_size)
    if wrong:
        sys.stderr.write(f"{me}: error: {wrong}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
