"""Textbook lessons on collectives, to run and to read. Each is checked, and raises `AssertionError` if it fails."""

from __future__ import annotations

import copy
import time
from typing import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

Lesson = Callable[[torch.device], Iterator[str]]
"""Yields lines for rank 0 to print."""


def check(holds: bool, what: str) -> None:
    """Raise `AssertionError` on all ranks if `holds` is false on any."""
    box: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(box, holds)
    if not all(box):
        raise AssertionError(f"{what}: not so on rank {box.index(False)}")


def ping_pong(device: torch.device) -> Iterator[str]:
    """Rank 0 sends a message to rank 1, which sends it back with one added: time = latency + size / bandwidth."""
    rank, times = dist.get_rank(), {}
    for size in (8, 1 << 10, 1 << 20, 1 << 24):
        message = torch.zeros(size // 4, device=device)
        for _ in range(3):
            began = time.perf_counter()
            if rank == 0:
                dist.send(message, 1)
                dist.recv(message, 1)
            elif rank == 1:
                dist.recv(message, 0)
                message += 1
                dist.send(message, 0)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[size] = time.perf_counter() - began
        check(
            rank > 1 or bool((message == 3).all()), f"a message of {size} bytes comes back three times with one added"
        )
        yield f"{size:>9} bytes there and back: {times[size] * 1e6:10.1f} us"
    latency, large = times[8] / 2, times[1 << 24] / 2
    yield (
        f"latency about {latency * 1e6:.1f} us, bandwidth about {(1 << 24) / max(large - latency, 1e-9) / 1e9:.2f} GB/s"
    )


def ring_all_reduce(device: torch.device) -> Iterator[str]:
    """all_reduce by hand in a ring: n-1 steps that sum one n-th each, n-1 steps that pass the sums on."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    own = torch.arange(ranks * 1000, device=device, dtype=torch.float64) + rank
    by_torch = own.clone()
    dist.all_reduce(by_torch)
    parts, sent = list(own.clone().chunk(ranks)), 0
    for step in range(2 * (ranks - 1)):
        summing = step < ranks - 1
        give = (rank - step + (0 if summing else ranks)) % ranks if summing else (rank + 1 - (step - ranks + 1)) % ranks
        take = (give - 1) % ranks
        incoming = torch.empty_like(parts[take])
        ops = [
            dist.P2POp(dist.isend, parts[give].contiguous(), (rank + 1) % ranks),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks),
        ]
        for request in dist.batch_isend_irecv(ops) if ranks > 1 else []:
            request.wait()
        parts[take] = parts[take] + incoming if summing else incoming
        sent += parts[give].numel()
    check(torch.equal(torch.cat(parts), by_torch), "the ring's sum is torch's")
    yield f"{2 * (ranks - 1)} steps gave what all_reduce gives; each rank sent {sent} of {own.numel()} elements"
    yield f"that is 2(n-1)/n = {2 * (ranks - 1) / ranks:.3f} of them: the factor between algbw and busbw"


def reduce_broadcast(device: torch.device) -> Iterator[str]:
    """all_reduce = reduce to one rank + broadcast from it."""
    own = torch.arange(1000.0, device=device) * (dist.get_rank() + 1)
    together, apart = own.clone(), own.clone()
    dist.all_reduce(together)
    dist.reduce(apart, dst=0)
    between = apart.clone()
    dist.broadcast(apart, src=0)
    check(torch.equal(together, apart), "reduce, then broadcast, gives what all_reduce gives")
    told_by_reduce = torch.equal(between, together)
    check(told_by_reduce == (dist.get_rank() == 0 or dist.get_world_size() == 1), "reduce alone tells rank 0 only")
    yield "reduce to rank 0 and broadcast from it gave what all_reduce gives; after the reduce alone only rank 0 had it"


def gradient_averaging(device: torch.device) -> Iterator[str]:
    """Averaging gradients by hand after backward gives, step by step, what DDP gives."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    by_hand = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device).double()
    model = copy.deepcopy(by_hand)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (by_hand, model)]
    data = torch.Generator().manual_seed(rank)
    for _ in range(5):
        x = torch.randn(8, 16, generator=data, dtype=torch.float64).to(device)
        y = torch.randn(8, 4, generator=data, dtype=torch.float64).to(device)
        for net, optimizer in zip((by_hand, ddp), optimizers):  # noqa: B905 - Python 3.9
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()  # type: ignore[no-untyped-call]
            if net is by_hand:
                for parameter in by_hand.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ranks
            optimizer.step()
    pairs = zip(by_hand.parameters(), model.parameters())  # noqa: B905
    worst = max((a - b).abs().max().item() for a, b in pairs)
    check(worst < 1e-12, "gradients averaged by hand train the model as DDP does")
    yield f"after 5 steps the two models differ by {worst:.1e} at most: DDP is backward + all_reduce / n"


LESSONS: dict[str, Lesson] = {
    "ping-pong": ping_pong,
    "ring-all-reduce": ring_all_reduce,
    "reduce-broadcast": reduce_broadcast,
    "gradient-averaging": gradient_averaging,
}
