"""Which rank trains on which sample, and when: functions of the seed and the epoch, computed one step at a time.

Nothing here grows with the data set, so a billion samples need no more memory than ten, and resuming in the middle of
an epoch costs as much as starting it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Protocol

    from trainer.config import Config
    from trainer.world import World

    class Order(Protocol):
        """How the samples are divided among the ranks."""

        epoch_samples: int
        """Samples of an epoch, over all ranks."""

        def spans(self, start: int = 0) -> Iterator[tuple[int, int]]:
            """First and past-the-last place of each step in the epoch's order over all ranks, from `start` on."""

        def take(self, epoch: int, start: int, end: int) -> NDArray[np.int64]:
            """This rank's sample numbers of the step from `start` to `end`."""


_ROUNDS = 6
_WORD = (1 << 64) - 1


def make_order(config: Config, world: World, samples: int) -> Order:
    """The order that `--split` names."""
    place: dict[str, Any] = {"rank": world.rank, "world_size": world.world_size, "seed": config.seed}
    if config.split == "exact":
        return ExactOrder(samples, config.batch_size, **place)
    return ShuffledOrder(
        samples, config.batch_size, **place, probability=config.sample_probability or 1 / world.world_size
    )


class ExactOrder:
    """Over all ranks, every sample comes exactly once per epoch.

    All ranks derive the same permutation from the seed and the epoch. Each step deals out the next
    `batch_size * world_size` samples of it; the last takes the rest. If that is less than two per rank, it joins the
    step before. The samples of a step do not depend on the number of ranks.
    """

    def __init__(self, samples: int, batch_size: int, *, rank: int, world_size: int, seed: int) -> None:
        self.epoch_samples, self.rank, self.world_size, self.seed = samples, rank, world_size, seed
        self.step_samples = batch_size * world_size

    def spans(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """See `Order`; a run resumed on another number of ranks sees the rest of the epoch once."""
        while start < self.epoch_samples:
            end = start + self.step_samples
            if self.epoch_samples - end < 2 * self.world_size:
                end = self.epoch_samples
            yield start, end
            start = end

    def take(self, epoch: int, start: int, end: int) -> NDArray[np.int64]:
        """See `Order`; empty if a resumed epoch has fewer samples left than there are ranks."""
        places = np.arange(start + self.rank, end, self.world_size)
        return permute(places, self.epoch_samples, key(self.seed, epoch))


class ShuffledOrder:
    """Every rank has its own shuffle, by seed and rank, and takes the share `probability` of the samples per epoch.

    A sample may come on several ranks in an epoch, or on none: the textbook method, without any communication.
    """

    def __init__(
        self, samples: int, batch_size: int, *, rank: int, world_size: int, seed: int, probability: float
    ) -> None:
        self.samples, self.rank, self.world_size, self.seed = samples, rank, world_size, seed
        steps = max(1, round(samples * probability) // batch_size)
        self.step_samples = batch_size * world_size
        self.epoch_samples = steps * self.step_samples

    def spans(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """See `Order`."""
        for first in range(start, self.epoch_samples, self.step_samples):
            yield first, min(first + self.step_samples, self.epoch_samples)

    def take(self, epoch: int, start: int, end: int) -> NDArray[np.int64]:
        """See `Order`."""
        places = np.arange(start // self.world_size, max(end // self.world_size, start // self.world_size + 1))
        return permute(places % self.samples, self.samples, key(self.seed, epoch, 1 + self.rank))


def eval_batches(samples: int, batch_size: int, *, rank: int, world_size: int) -> Iterator[NDArray[np.int64]]:
    """The test samples that one rank counts: each of `samples` belongs to exactly one rank, none is repeated.

    All ranks have the same number of batches, as models that communicate in `forward` need; the last can be empty.
    """
    for first in range(0, samples, batch_size * world_size):
        yield np.arange(first + rank, min(first + batch_size * world_size, samples), world_size)


def permute(places: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """The image of `places` under a permutation of 0 to `size` - 1, chosen by `key`; of shape (n,), like `places`.

    A Feistel network permutes the numbers of 2b bits, the smallest such range that holds `size`. A result outside is
    permuted again until it falls inside (cycle walking), in less than 4 turns on average.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = np.array([_mix(key + number) for number in range(_ROUNDS)], np.uint64)
    values = places.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> shift, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix_array(right + round_key) & mask)
        values[outside] = left << shift | right
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def uniforms(samples: NDArray[np.int64], count: int, key: int) -> NDArray[np.float64]:
    """`count` random numbers in [0, 1) for each of `samples`, of shape (n, count).

    They depend on the sample and the key alone: an image is cropped the same way on any rank and thread.
    """
    words: Any = samples.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    drawn = _mix_array(words ^ np.uint64(_mix(key))) >> np.uint64(11)
    return drawn.astype(np.float64) * 2.0**-53


def key(*parts: int) -> int:
    """Hash several numbers to one below 2**64."""
    value = 0
    for part in parts:
        value = _mix(value + part + 0x9E3779B97F4A7C15)
    return value


def _mix(value: int) -> int:
    """The finaliser of splitmix64: every bit of the result depends on every bit of `value`."""
    value &= _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31


def _mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
