"""Which rank trains on which sample, and which one evaluates it: arithmetic, without torch."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
from trainer.order import ExactOrder, ShuffledOrder, eval_batches, key, permute, uniforms

pytestmark = pytest.mark.torch(False)

SIZES = [(samples, batch, world) for samples in (16, 17, 97, 230) for batch in (1, 2, 5, 8) for world in (1, 2, 3, 7)]
SIZES = [(samples, batch, world) for samples, batch, world in SIZES if batch * world <= samples]


def order(samples: int, batch: int, rank: int, world: int, seed: int = 0) -> ExactOrder:
    return ExactOrder(samples, batch, rank=rank, world_size=world, seed=seed)


def steps(samples: int, batch: int, world: int, epoch: int = 0, seed: int = 0, start: int = 0) -> list[list[list[int]]]:
    """Sample numbers by rank and step."""
    ranks = [order(samples, batch, rank, world, seed) for rank in range(world)]
    return [[rank.take(epoch, *span).tolist() for span in rank.spans(start)] for rank in ranks]


def flat(by_rank: list[list[list[int]]]) -> list[int]:
    return [number for rank in by_rank for step in rank for number in step]


@pytest.mark.parametrize(("samples", "batch", "world"), SIZES)
def test_each_sample_comes_once_per_epoch_over_all_ranks(samples: int, batch: int, world: int) -> None:
    assert sorted(flat(steps(samples, batch, world))) == list(range(samples))


@pytest.mark.parametrize(("samples", "batch", "world"), SIZES)
def test_all_ranks_take_the_same_number_of_steps_and_none_is_empty(samples: int, batch: int, world: int) -> None:
    by_rank = steps(samples, batch, world)

    assert len({len(rank) for rank in by_rank}) == 1
    sizes = [[len(step) for step in rank] for rank in by_rank]
    assert min(map(min, sizes)) >= 1
    assert all(size == batch for sizes_of_rank in sizes for size in sizes_of_rank[:-1])
    assert max(map(max, sizes)) <= batch + 2  # what is left joins the last step only when it is less than two a rank


def test_the_samples_of_a_step_do_not_depend_on_the_number_of_ranks() -> None:
    one, four = steps(1438, 128, 1), steps(1438, 32, 4)

    for step, expected in enumerate(one[0]):
        assert sorted(expected) == sorted(itertools.chain.from_iterable(rank[step] for rank in four))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [steps(97, 8, 1, epoch, seed)[0] for epoch in (0, 1) for seed in (0, 1)]

    assert all(first != second for first, second in itertools.combinations(orders, 2))


def test_an_order_is_the_same_in_every_process_and_version() -> None:
    """A run may resume elsewhere, and later."""
    assert permute(np.arange(10), 10, key(3, 1)).tolist() == [7, 8, 0, 4, 2, 6, 5, 9, 3, 1]
    drawn = uniforms(np.array([0, 7]), 2, key(3, 1)).tolist()
    assert drawn == [[0.08186662151819157, 0.03437789279177694], [0.5453921259972266, 0.9822571716911047]]
    assert order(97, 4, 1, 2, seed=5).take(2, 8, 16).tolist() == [15, 84, 52, 89]


def test_an_epoch_continues_where_it_was_left() -> None:
    whole = steps(97, 8, 2)
    _, third = list(order(97, 8, 1, 2).spans())[1]

    assert [rank[2:] for rank in whole] == steps(97, 8, 2, start=third)


@pytest.mark.parametrize("world", [1, 2, 5, 40])
@pytest.mark.parametrize("seen", [8, 24, 96])
def test_on_another_number_of_ranks_the_rest_of_the_epoch_comes_once(world: int, seen: int) -> None:
    before = set(flat(steps(97, 8, 1))[:seen])

    left = flat(steps(97, 8, world, start=seen))

    assert sorted([*before, *left]) == list(range(97))


def test_the_cost_of_a_step_does_not_depend_on_the_size_of_the_data() -> None:
    """A billion samples: a permutation in memory would be 8 GB."""
    take = order(10**9, 256, 3, 8).take(5, 10**8, 10**8 + 2048)

    assert len(set(take.tolist())) == 256
    assert 0 <= take.min() < take.max() < 10**9


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000])
def test_a_permutation_is_one_and_every_place_can_go_everywhere(size: int) -> None:
    every = [permute(np.arange(size), size, key(seed)) for seed in range(200)]

    assert all(sorted(one.tolist()) == list(range(size)) for one in every)
    assert len({int(one[0]) for one in every}) > min(size, 200) * 0.6


def test_shuffled_ranks_take_their_share_each_with_a_shuffle_of_its_own() -> None:
    ranks = [ShuffledOrder(1000, 10, rank=rank, world_size=4, seed=0, probability=0.5) for rank in range(4)]
    taken = [[one.take(0, *span).tolist() for span in one.spans()] for one in ranks]

    assert [len(flat([one])) for one in taken] == [500] * 4
    assert all(len(set(flat([one]))) == 500 for one in taken)  # without repetition on a rank
    together = len(set(flat(taken)))
    assert 900 < together < 970  # 1 - 0.5^4 of 1000, were they independent
    assert [one.take(0, *span).tolist() for one in ranks[1:2] for span in one.spans(400)] == taken[1][10:]


def test_random_numbers_are_a_samples_own_and_even() -> None:
    drawn = uniforms(np.arange(10_000), 5, key(1, 2))

    assert np.array_equal(uniforms(np.array([77, 3]), 5, key(1, 2)), drawn[[77, 3]])
    assert np.abs(drawn.mean(0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.04
    assert drawn.min() >= 0
    assert drawn.max() < 1


@pytest.mark.parametrize(("samples", "batch", "world"), [*SIZES, (3, 8, 7)])
def test_the_evaluation_counts_each_sample_once(samples: int, batch: int, world: int) -> None:
    by_rank = [list(eval_batches(samples, batch, rank=rank, world_size=world)) for rank in range(world)]

    counted = collections.Counter(index for steps_ in by_rank for step in steps_ for index in step.tolist())
    assert counted == collections.Counter(range(samples))
    assert len({len(steps_) for steps_ in by_rank}) == 1, "else a rank would wait for another"
    assert max(len(step) for steps_ in by_rank for step in steps_) <= batch
