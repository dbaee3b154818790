"""Collective and point-to-point operations: buffer sizes, the busbw factor, and the check of each.

Size and bandwidths are defined as in nccl-tests: algbw = size / time, busbw = algbw * factor. The factor makes busbw
comparable with the link's speed for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
import torch.distributed as dist

DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
}


@dataclass
class Buffers:
    """The tensors of one measurement on this rank."""

    source: torch.Tensor
    target: torch.Tensor
    rank: int
    world_size: int


@dataclass(frozen=True)
class Operation:
    """One operation; `sizes` maps the total number of elements and of ranks to the elements of source and target."""

    name: str
    factor: Callable[[int], float]
    sizes: Callable[[int, int], tuple[int, int]]
    run: Callable[[Buffers], None]
    expected: Callable[[Buffers], torch.Tensor | None]
    """What `target` must hold after one run on a fresh `source`; None if this rank's target is undefined."""

    per_rank: bool = False
    """Whether the size is divided among the ranks, with at least one element each."""

    takers: Callable[[int], int] = int
    """How many of that many ranks take part, from rank 0 on."""


def pattern(rank: int, count: int, like: torch.Tensor) -> torch.Tensor:
    """The source of rank `rank`: small integers, whose sums in any order every type holds exactly for up to 750 ranks.

    No sum over all ranks is 0, which memory may hold by itself.
    """
    return _values(rank, torch.arange(count, device=like.device)).to(like.dtype)


def _values(rank: int, places: torch.Tensor) -> torch.Tensor:
    return (places + rank) % 3 + (1 if rank == 0 else -1)


def _sum(buffers: Buffers, count: int, offset: int = 0) -> torch.Tensor:
    places = torch.arange(offset, offset + count, device=buffers.target.device)
    cycles = buffers.world_size - buffers.world_size % 3  # three ranks in a row add nothing, but rank 0 has 2 more
    total = torch.full_like(places, 2 if cycles else 0)
    for rank in range(cycles, buffers.world_size):
        total += _values(rank, places)
    return total.to(buffers.target.dtype)


def _all_reduce(buffers: Buffers) -> None:
    dist.all_reduce(buffers.target)


def _broadcast(buffers: Buffers) -> None:
    dist.broadcast(buffers.target, src=0)


def _reduce(buffers: Buffers) -> None:
    dist.reduce(buffers.target, dst=0)


def _all_gather(buffers: Buffers) -> None:
    dist.all_gather_into_tensor(buffers.target, buffers.source)


def _reduce_scatter(buffers: Buffers) -> None:
    dist.reduce_scatter_tensor(buffers.target, buffers.source)


def _all_to_all(buffers: Buffers) -> None:
    dist.all_to_all_single(buffers.target, buffers.source)


def _partner(buffers: Buffers) -> int | None:
    """The other rank of a pair; None for an odd last rank, which only waits."""
    if buffers.world_size == 1:
        raise NotImplementedError("a pair of one rank is not supported")
    partner = buffers.rank ^ 1
    return partner if partner < buffers.world_size else None


def _send_recv(buffers: Buffers) -> None:
    """Even ranks send, then receive; odd ranks do the reverse: one direction at a time, as in a ping-pong."""
    partner = _partner(buffers)
    if partner is None:
        return
    if buffers.rank < partner:
        dist.send(buffers.source, partner)
        dist.recv(buffers.target, partner)
    else:
        dist.recv(buffers.target, partner)
        dist.send(buffers.source, partner)


def _wait(requests: list[dist.Work]) -> None:
    for request in requests:
        request.wait()


def _exchange(buffers: Buffers, to: int, source: int) -> None:
    ops = [dist.P2POp(dist.isend, buffers.source, to), dist.P2POp(dist.irecv, buffers.target, source)]
    _wait(dist.batch_isend_irecv(ops))


def _isend_irecv(buffers: Buffers) -> None:
    partner = _partner(buffers)
    if partner is not None:
        _exchange(buffers, partner, partner)


def _ring(buffers: Buffers) -> tuple[int, int]:
    if buffers.world_size == 1:
        raise NotImplementedError("a ring of one rank is not supported")
    return (buffers.rank + 1) % buffers.world_size, (buffers.rank - 1) % buffers.world_size


def _ring_send_recv(buffers: Buffers) -> None:
    """Blocking: rank 0 sends first and all others receive first, else the ring would deadlock."""
    right, left = _ring(buffers)
    if buffers.rank == 0:
        dist.send(buffers.source, right)
        dist.recv(buffers.target, left)
    else:
        dist.recv(buffers.target, left)
        dist.send(buffers.source, right)


def _ring_isend_irecv(buffers: Buffers) -> None:
    _exchange(buffers, *_ring(buffers))


def _from(rank: Callable[[Buffers], int | None]) -> Callable[[Buffers], torch.Tensor | None]:
    def expected(buffers: Buffers) -> torch.Tensor | None:
        source = rank(buffers)
        return None if source is None else pattern(source, buffers.target.numel(), buffers.target)

    return expected


def _expect_gather(buffers: Buffers) -> torch.Tensor:
    each = buffers.source.numel()
    return torch.cat([pattern(rank, each, buffers.target) for rank in range(buffers.world_size)])


def _expect_scatter(buffers: Buffers) -> torch.Tensor:
    each = buffers.target.numel()
    return _sum(buffers, each, offset=each * buffers.rank)


def _expect_all_to_all(buffers: Buffers) -> torch.Tensor:
    each = buffers.source.numel() // buffers.world_size
    own = torch.arange(each * buffers.rank, each * (buffers.rank + 1), device=buffers.target.device)
    return torch.cat([_values(rank, own) for rank in range(buffers.world_size)]).to(buffers.target.dtype)


def _all(n: int, _: int) -> tuple[int, int]:
    return n, n


def _one(_: int) -> float:
    return 1.0


def _paired(ranks: int) -> int:
    return ranks - ranks % 2


def _but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", lambda r: 2 * _but_own(r), _all, _all_reduce, lambda b: _sum(b, b.target.numel())),
        Operation("broadcast", _one, _all, _broadcast, _from(lambda _: 0)),
        Operation("reduce", _one, _all, _reduce, lambda b: _sum(b, b.target.numel()) if b.rank == 0 else None),
        Operation(
            "all_gather", _but_own, lambda n, r: (n // r, n // r * r), _all_gather, _expect_gather, per_rank=True
        ),
        Operation(
            "reduce_scatter",
            _but_own,
            lambda n, r: (n // r * r, n // r),
            _reduce_scatter,
            _expect_scatter,
            per_rank=True,
        ),
        Operation(
            "all_to_all",
            _but_own,
            lambda n, r: (n // r * r, n // r * r),
            _all_to_all,
            _expect_all_to_all,
            per_rank=True,
        ),
        # There and back within the time.
        Operation("send_recv", lambda _: 2.0, _all, _send_recv, _from(_partner), takers=_paired),
        Operation("isend_irecv", _one, _all, _isend_irecv, _from(_partner), takers=_paired),
        Operation("ring_send_recv", _one, _all, _ring_send_recv, _from(lambda b: _ring(b)[1])),
        Operation("ring_isend_irecv", _one, _all, _ring_isend_irecv, _from(lambda b: _ring(b)[1])),
    )
}
"""The operations by name."""

IN_PLACE = {"all_reduce", "broadcast", "reduce"}
"""Operations that work on `target`, which then starts as a copy of `source`."""
