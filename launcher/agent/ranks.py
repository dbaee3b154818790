"""The ranks of workers, as torchrun defines them."""

from __future__ import annotations

import itertools
from typing import Iterable, List, Sequence

from .named_tuple import NamedTuple


class Ranks(NamedTuple):
    """One worker's ranks and world sizes, as torchrun defines them."""

    rank: int
    local_rank: int
    role_rank: int
    world_size: int
    role_world_size: int


class Group(NamedTuple):
    """What all workers of this node have in common in one round."""

    node_rank: int
    nodes: int
    local_world_size: int
    role: str
    master_addr: str
    master_port: int
    restarts: int
    counts: Sequence[int]
    """The number of workers of each node, by node rank."""


def ranks_of(node_rank: int, workers: Sequence[int]) -> List[Ranks]:
    """The ranks of a node's workers, given the number of workers on each node."""
    first, world = sum(workers[:node_rank]), sum(workers)
    return [Ranks(first + local, local, first + local, world, world) for local in range(workers[node_rank])]


def as_runs(counts: Iterable[int]) -> List[List[int]]:
    """The numbers of workers as pairs: a number, and how many nodes in a row have it. Most runs have one pair."""
    return [[count, len([*same])] for count, same in itertools.groupby(counts)]


def from_runs(runs: Iterable[Sequence[int]]) -> List[int]:
    """The number of workers of each node."""
    return [count for count, nodes in runs for _ in range(nodes)]


def progress_file(round_number: int, local_rank: int) -> str:
    """The name of the file in which a worker may tell its progress."""
    return f"progress-{round_number}-{local_rank}"
