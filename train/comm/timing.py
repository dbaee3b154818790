"""Time an operation at a size: check it, warm up, then time it by the clock that suits the device."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from comm.operations import DTYPES, IN_PLACE, Buffers, Operation, pattern


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    operation: str
    size_bytes: int
    count: int
    dtype: str
    iterations: int
    time_s: float
    """Seconds of one run, the mean over the ranks that take part."""

    algbw: float
    """GB/s (10^9)."""

    busbw: float
    wrong: int | None
    """Wrong elements over all ranks; None if not checked."""

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Manner:
    """How to measure."""

    device: torch.device
    dtype: str = "float32"
    warmup: int = 5
    iterations: int = 0
    """Timed runs; 0 for as many as fit into `seconds`, from 3 to 1000."""

    seconds: float = 0.5
    check: bool = True


def measure(operation: Operation, size_bytes: int, manner: Manner) -> Row:
    """Measure one row; every rank calls this with the same arguments and gets the same row."""
    dtype = DTYPES[manner.dtype]
    ranks = dist.get_world_size()
    item = torch.empty((), dtype=dtype).element_size()
    count = max(ranks if operation.per_rank else 1, size_bytes // item)
    has, gets = operation.sizes(count, ranks)
    rank = dist.get_rank()
    source = torch.empty(has, dtype=dtype, device=manner.device)
    source.copy_(pattern(rank, has, source))
    target = source.clone() if operation.name in IN_PLACE else torch.zeros(gets, dtype=dtype, device=manner.device)
    buffers = Buffers(source, target, rank, ranks)

    operation.run(buffers)
    wrong = _wrong(operation, buffers) if manner.check else None
    if operation.name in IN_PLACE:
        target.zero_()  # sums of sums would overflow
    warm = seconds_of(operation, buffers, max(1, manner.warmup), manner.device)
    iterations = manner.iterations or agreed(min(1000, max(3, int(manner.seconds / max(warm, 1e-7)))))
    own_s, takers = seconds_of(operation, buffers, iterations, manner.device), operation.takers(ranks)
    taken = torch.tensor([own_s if rank < takers else 0.0], dtype=torch.float64, device=manner.device)
    dist.all_reduce(taken)
    time_s = taken.item() / takers
    whole = max(has, gets) * item
    algbw = whole / time_s / 1e9
    return Row(
        operation.name,
        whole,
        max(has, gets),
        manner.dtype,
        iterations,
        time_s,
        algbw,
        algbw * operation.factor(ranks),
        wrong,
    )


def agreed(value: int) -> int:
    """Rank 0's number, on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def seconds_of(operation: Operation, buffers: Buffers, iterations: int, device: torch.device) -> float:
    """Seconds per run. A GPU is timed by its own clock, since calls return before the work is done."""
    if device.type == "cuda":
        begin, end = _event(), _event()
        torch.cuda.synchronize()
        dist.barrier(device_ids=[device.index])
        begin.record()
        for _ in range(iterations):
            operation.run(buffers)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / iterations
    run = operation.run
    dist.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        run(buffers)
    return (time.perf_counter() - began) / iterations


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _wrong(operation: Operation, buffers: Buffers) -> int:
    expected = operation.expected(buffers)
    different = 0 if expected is None else int((buffers.target != expected).sum().item())
    total = torch.tensor([different], dtype=torch.int64, device=buffers.target.device)
    dist.all_reduce(total)
    return int(total.item())
