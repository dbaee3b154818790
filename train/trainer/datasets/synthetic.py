"""`--data synthetic`: generated images of any shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trainer import order
from trainer.datasets.dataset import Data, Dataset

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.sources import Numbers, Shape


class Synthetic:
    """Noise over a coarse pattern per class: sample i is the same in every process and run, and can be learnt.

    The noise of each sample is a slice of one tape of random bytes: a sample costs two passes over memory.
    """

    decodes, dtype = False, torch.uint8

    def __init__(self, shape: Shape, classes: int, samples: int, seed: int, first: int) -> None:
        self.shape, self.classes, self.samples, self.first = shape, classes, samples, first
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(min(classes, 64), shape[0], 4, 4, generator=generator).mul(30).add(64).clamp(0, 127)
        self.patterns = interpolate(coarse, size=shape[1:], mode="nearest").to(torch.uint8)
        self.size = shape[0] * shape[1] * shape[2]
        self.tape = torch.randint(0, 128, (2 * self.size + 100_003,), dtype=torch.uint8, generator=generator)
        self.key = order.key(seed)

    def __len__(self) -> int:
        return self.samples

    def fill(self, numbers: Numbers, epoch: Optional[int], images: Tensor, labels: Tensor) -> list[int]:  # noqa: ARG002
        """See `trainer.sources`; nothing is augmented."""
        numbers = numbers + self.first
        places = (order.uniforms(numbers, 1, self.key)[:, 0] * (len(self.tape) - self.size)).astype(np.int64)
        for slot, (number, at) in enumerate(zip(numbers.tolist(), places.tolist())):
            label = number % self.classes
            noise = self.tape[at : at + self.size].view(self.shape)
            torch.add(noise, self.patterns[label % len(self.patterns)], out=images[slot])
            labels[slot] = label
        return []

    def name(self, number: int) -> str:
        """See `Source`."""
        return f"sample {number}"


def load(config: Config) -> Data:
    """`--samples` training samples, and an eighth as many test samples."""
    classes, channels = config.classes or 10, config.image_shape[0]
    test_samples = max(1, config.samples // 8)
    train = Synthetic(config.image_shape, classes, config.samples, config.seed, first=0)
    test = Synthetic(config.image_shape, classes, test_samples, config.seed, first=config.samples)
    return Data(train, test, classes, (127.0,) * channels, (47.0,) * channels)


DATASETS = (Dataset(load, "synthetic", small=(3, 32, 32), epochs=1),)
