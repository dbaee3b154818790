"""`--data digits`: handwritten digits that come with scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trainer.datasets.dataset import Data, Dataset
from trainer.errors import InputError
from trainer.sources import InMemory

if TYPE_CHECKING:
    from trainer.config import Config

SPLIT_SEED = 0
"""Fixed for any `--seed`: no run trains on another's test samples, and accuracies can be compared."""


def load(config: Config) -> Data:
    """The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships; a fifth of each class is for testing."""
    table = _read_digits()
    images, labels = table[:, :64].float().reshape(-1, 1, 8, 8), table[:, 64].long()
    images = (images / 16 - 0.305) / 0.376  # mean and deviation over all pixels
    channels, height, width = config.image_shape
    if (height, width) != (8, 8):
        images = interpolate(images, size=(height, width), mode="bilinear", align_corners=False)
    images = images.expand(-1, channels, -1, -1)
    train, test = stratified_split(labels, test_fraction=0.2, seed=SPLIT_SEED)
    return Data(InMemory(images[train], labels[train]), InMemory(images[test], labels[test]), classes=10)


def _read_digits() -> Tensor:
    """uint8 of shape (1797, 65): the pixels, 0 to 16, and the digit."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise InputError("--data digits needs scikit-learn, which ships them: pip install scikit-learn")
    import numpy as np

    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():  # reading the file takes 5 ms, importing sklearn.datasets a second
        return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.uint8))
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.from_numpy(np.column_stack([digits.data, digits.target]).astype(np.uint8))


def stratified_split(labels: Tensor, test_fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Ascending sample numbers for training and for testing, both (n,), with the same share of every class."""
    generator = torch.Generator().manual_seed(seed)
    testing = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().flatten()
        chosen = torch.randperm(len(members), generator=generator)[: round(len(members) * test_fraction)]
        testing[members[chosen]] = True
    return (~testing).nonzero().flatten(), testing.nonzero().flatten()


DATASETS = (Dataset(load, "digits", small=(1, 8, 8), epochs=12),)
