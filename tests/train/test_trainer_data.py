"""Who trains on which sample, and who counts which."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from trainer.data import load_data, stratified_split
from trainer.flags import parse
from trainer.order import ExactOrder, ShuffledOrder, eval_batches, key, permute, uniforms
from trainer.sources import InMemory, Synthetic

SIZES = [(samples, batch, world) for samples in (16, 17, 97, 1438) for batch in (1, 2, 5, 8) for world in (1, 2, 3, 7)]
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
    assert orders[0] == steps(97, 8, 1, 0, 0)[0]


def test_an_epoch_goes_on_where_it_was_left() -> None:
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
    counted = collections.Counter(
        index
        for rank in range(world)
        for step in eval_batches(samples, batch, rank=rank, world_size=world)
        for index in step.tolist()
    )

    assert counted == collections.Counter(range(samples))


def whole(source: Any) -> tuple[Tensor, Tensor]:
    """All images and labels of digits."""
    assert isinstance(source, InMemory)
    return source.images, source.labels


def test_the_digits_are_split_by_class_and_never_overlap() -> None:
    data = load_data(parse([], 1), 1)
    train, test = whole(data.train), whole(data.test)

    assert len(data.train) + len(data.test) == 1797
    assert train[0].shape[1:] == (1, 8, 8)
    shares = test[1].bincount() / (train[1].bincount() + test[1].bincount())
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.01)
    assert abs(train[0].mean()) < 0.05
    assert abs(train[0].std() - 1) < 0.05


def test_a_split_is_the_same_for_the_same_seed_and_whole() -> None:
    labels = torch.arange(100) % 7
    train, test = stratified_split(labels, 0.3, seed=5)

    assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert torch.equal(test, stratified_split(labels, 0.3, seed=5)[1])
    assert not torch.equal(test, stratified_split(labels, 0.3, seed=6)[1])


def test_the_digits_match_what_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits

    data, expected = load_data(parse([], 1), 1), load_digits()
    images = torch.cat([whole(data.train)[0], whole(data.test)[0]]).flatten(1) * 0.376 + 0.305
    labels = torch.cat([whole(data.train)[1], whole(data.test)[1]])

    def rows(pixels: Any, digits: Any) -> list[tuple[int, ...]]:
        return sorted((int(digit), *map(int, row)) for row, digit in zip(pixels, digits, strict=True))

    assert rows((images * 16).round().tolist(), labels.tolist()) == rows(expected.data, expected.target)


def test_a_synthetic_sample_is_the_same_whoever_asks() -> None:
    def made(numbers: list[int], seed: int = 1, first: int = 0) -> tuple[Tensor, Tensor]:
        images, labels = torch.empty(len(numbers), 3, 16, 12, dtype=torch.uint8), torch.empty(len(numbers), dtype=torch.int64)
        source = Synthetic((3, 16, 12), classes=5, samples=10, seed=seed, first=first)
        assert source.fill(np.array(numbers), 0, images, labels) == []
        return images, labels

    images, labels = made([3, 7])

    assert labels.tolist() == [3, 2]
    assert torch.equal(made([7])[0][0], images[1])
    assert not torch.equal(made([7], seed=2)[0][0], images[1])
    assert torch.equal(made([0], first=7)[0][0], images[1])
    assert not torch.equal(images[0], images[1])
