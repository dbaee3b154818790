"""This process's place among the ranks, as torchrun's environment gives it."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group exists: its functions would keep that one as their default
from comm.leave import leave

from trainer.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """One rank of the process group; made by `process_group`."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    """Where this rank computes: `cuda:LOCAL_RANK`, or `cpu` on a host without GPUs."""

    @property
    def backend(self) -> str:
        """What carries the gradients: `nccl` or `gloo`."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank and continue only if it succeeded on all.

        `action` must not communicate. If it raises `InputError` on any rank, rank 0 prints one line for the whole run,
        and every rank exits with status 2, once the line is written: torchrun kills the others at the first exit.
        """
        result, problem = None, None
        try:
            result = action()
        except InputError as error:
            problem = str(error)
        problems = enumerate(self.all((problem, socket.gethostname())))
        failed = [(rank, text, host) for rank, (text, host) in problems if text is not None]
        if failed:
            rank, text, host = failed[0]
            if self.rank == 0:
                where = f"rank {rank} on {host}: " if rank else ""
                sys.stderr.write(f"{os.path.basename(sys.argv[0])}: error: {where}{text}\n")
                sys.stderr.flush()
            dist.all_reduce(torch.zeros(1))
            raise SystemExit(2)
        return cast("T", result)

    def from_rank_0(self, value: T) -> T:
        """Rank 0's `value`, on every rank; it must pickle."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def all(self, value: T) -> list[T]:
        """`value` of every rank, in rank order; it must pickle."""
        every: list[Any] = [None] * self.world_size
        dist.all_gather_object(every, value)
        return every

    def to_rank_0(self, value: T) -> list[T]:
        """`value` of every rank, in rank order, on rank 0 (empty elsewhere); it must pickle."""
        every: Optional[list[Any]] = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, every, dst=0)
        return every or []

    def sum(self, *values: float) -> list[float]:
        """Each of `values`, summed over the ranks (float64, over gloo, without waiting for the GPU)."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def gather(self, *values: float) -> list[list[float]]:
        """`values` of every rank, in rank order (float64, over gloo)."""
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(every, mine)
        return [one.tolist() for one in every]


@contextmanager
def process_group() -> Iterator[World]:
    """Join the process group that torchrun's environment names; without one, create a group of this process alone.

    Gradients go over NCCL on GPUs and over gloo elsewhere. gloo is set up in both cases, for what the ranks have to
    agree on, since it does not wait for the GPU. `CUDA_VISIBLE_DEVICES=` (empty) keeps a run on the CPU.

    Nothing that holds the group, in particular no DDP model, may outlive the block: gloo's threads are joined only with
    the last reference, and one that still runs at interpreter exit sometimes aborts the process.
    """
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if launched else 0
    device = _device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    bound = device if device.type == "cuda" else None
    if launched:
        dist.init_process_group(backend, device_id=bound)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but missing from torch's exports
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound)
    try:
        yield World(dist.get_rank(), local_rank, dist.get_world_size(), device)
    except Exception:
        raise  # peers may have exited: destroying an NCCL group could wait for them, and torchrun kills them anyway
    except BaseException:
        leave()
        raise
    else:
        leave()


def _device(local_rank: int) -> torch.device:
    """This rank's device, made current; raises `SystemExit` with a message if the host has fewer GPUs than ranks."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise SystemExit(
            f"{os.path.basename(sys.argv[0])}: error: local rank {local_rank} on {socket.gethostname()} has no GPU of "
            f"its own: the host shows {torch.cuda.device_count()}. "
            "Start as many ranks, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
