"""Latency and bandwidth of every pair of ranks, measured in rounds with no rank in two pairs."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

_PATIENCE_S = 0.5


@dataclass(frozen=True)
class Matrix:
    """Latency and bandwidth of each pair, as [one][other]; symmetric, 0 on the diagonal."""

    names: list[str]
    latency_s: list[list[float]]
    gbytes_per_s: list[list[float]]

    def slow(self, factor: float = 2.0) -> list[tuple[int, int, float]]:
        """Pairs whose bandwidth is an outlier below the median: (one, other, part of the median), slowest first."""
        ranks = range(len(self.names))
        pairs = {(a, b): self.gbytes_per_s[a][b] for a in ranks for b in ranks if a < b}
        if not pairs:
            return []
        # With four ranks, half the pairs include a slow one: take the higher median rate, the lower median deviation.
        middle = statistics.median_high(pairs.values())
        spread = statistics.median_low(abs(math.log(rate / middle)) for rate in pairs.values())
        limit = middle / max(factor, math.exp(4 * spread))
        return sorted(((a, b, rate / middle) for (a, b), rate in pairs.items() if rate < limit), key=lambda it: it[2])

    def slow_ranks(self) -> list[int]:
        """Ranks with most of their pairs slow, which points to the rank's own link."""
        slow = self.slow()
        often = {rank: sum(rank in pair[:2] for pair in slow) for rank in range(len(self.names))}
        return [rank for rank, count in often.items() if count * 2 > len(self.names) - 1 and count > 1]


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Round-robin pairing: all ranks meet once, and none is in two pairs of a round (the circle method)."""
    players: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        met = zip(players[:half], reversed(players[half:]))  # noqa: B905 - Python 3.9
        found.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return found


def measure(device: torch.device, names: list[str], *, size_bytes: int, repeats: int = 5) -> Matrix:
    """Time a ping-pong of 8 bytes, then of `size_bytes`, for every pair, best of the repeats.

    Every rank gets the whole matrix.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    small, large = (torch.ones(max(1, size // 4), device=device) for size in (8, size_bytes))
    mine = torch.zeros(2, ranks, dtype=torch.float64)
    for pairs in rounds(ranks):
        dist.barrier()
        partner = next((a + b - rank for a, b in pairs if rank in (a, b)), None)
        if partner is not None:
            mine[0, partner] = _ping_pong(small, partner, first=rank < partner, repeats=repeats * 2) / 2
            one_way = _ping_pong(large, partner, first=rank < partner, repeats=repeats) / 2
            mine[1, partner] = large.numel() * 4 / one_way / 1e9
    every = [torch.zeros_like(mine).tolist() for _ in range(ranks)]
    dist.all_gather_object(every, mine.tolist())
    latency = [[(every[a][0][b] + every[b][0][a]) / 2 for b in range(ranks)] for a in range(ranks)]
    rate = [[(every[a][1][b] + every[b][1][a]) / 2 for b in range(ranks)] for a in range(ranks)]
    return Matrix(names, latency, rate)


def _ping_pong(tensor: torch.Tensor, partner: int, *, first: bool, repeats: int) -> float:
    """The shortest round trip of `repeats`; on a slow link, of as many as fit into half a second, at least one."""
    _there_and_back(tensor[:1], partner, first=first)  # opens the connection
    best = _there_and_back(tensor, partner, first=first)
    more = torch.tensor([min(repeats - 1, int(_PATIENCE_S / best))], device=tensor.device)
    if first:
        dist.send(more, partner)
    else:
        dist.recv(more, partner)
    return min([best, *(_there_and_back(tensor, partner, first=first) for _ in range(int(more.item())))])


def _there_and_back(tensor: torch.Tensor, partner: int, *, first: bool) -> float:
    began = time.perf_counter()
    if first:
        dist.send(tensor, partner)
        dist.recv(tensor, partner)
    else:
        dist.recv(tensor, partner)
        dist.send(tensor, partner)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began
