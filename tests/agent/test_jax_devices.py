"""Which GPUs a process of JAX gets: its share of those that its node's workers see."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.agent import contracts
from launcher.agent.contracts._contract import Member
from launcher.agent.ranks import Group, Ranks

JAX = contracts.load("jax")


def devices(gpus: int, workers: int, local_rank: int, *, virtual: bool = False) -> str | None:
    class OneJob:
        virtual_local_rank = virtual

    job: Any = OneJob()
    group = Group(0, 1, workers, "default", "10.0.0.1", 4000, 0, [workers])
    ranks = Ranks(local_rank, local_rank, local_rank, workers, workers)
    found = {each.name: each.value for each in JAX.variables(Member(job, group, ranks, gpus, served=False, peers=[]))}
    return found.get("JAX_LOCAL_DEVICE_IDS")


@pytest.mark.parametrize(
    ("gpus", "workers", "expected"),
    [
        (8, 1, ["0,1,2,3,4,5,6,7"]),
        (8, 8, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        (8, 2, ["0,1,2,3", "4,5,6,7"]),
        (8, 3, [None, None, None]),
        (0, 2, [None, None]),
    ],
)
def test_each_process_has_its_share(gpus: int, workers: int, expected: list[str | None]) -> None:
    assert [devices(gpus, workers, rank) for rank in range(workers)] == expected


def test_with_a_virtual_rank_a_process_sees_one_and_that_is_its_first() -> None:
    assert [devices(4, 4, rank, virtual=True) for rank in range(4)] == ["0", "0", "0", "0"]
