"""Data sets without images: which samples they hold, and how they are divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.torch


def whole(source: Any) -> tuple[Tensor, Tensor]:
    """All images and labels of digits."""
    from trainer.sources import InMemory

    assert isinstance(source, InMemory)
    return source.images, source.labels


def test_the_digits_are_split_by_class_and_never_overlap() -> None:
    import torch
    from trainer.datasets import load_data
    from trainer.flags import parse

    data = load_data(parse([], 1), 1)
    train, test = whole(data.train), whole(data.test)

    assert len(data.train) + len(data.test) == 1797
    assert train[0].shape[1:] == (1, 8, 8)
    shares = test[1].bincount() / (train[1].bincount() + test[1].bincount())
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.01)
    assert abs(train[0].mean()) < 0.05
    assert abs(train[0].std() - 1) < 0.05


def test_a_split_is_the_same_for_the_same_seed_and_whole() -> None:
    import torch
    from trainer.datasets.digits import stratified_split

    labels = torch.arange(100) % 7
    train, test = stratified_split(labels, 0.3, seed=5)

    assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert torch.equal(test, stratified_split(labels, 0.3, seed=5)[1])
    assert not torch.equal(test, stratified_split(labels, 0.3, seed=6)[1])


def test_the_digits_match_what_scikit_learn_loads() -> None:
    import torch
    from sklearn.datasets import load_digits
    from trainer.datasets import load_data
    from trainer.flags import parse

    data, expected = load_data(parse([], 1), 1), load_digits()
    images = torch.cat([whole(data.train)[0], whole(data.test)[0]]).flatten(1) * 0.376 + 0.305
    labels = torch.cat([whole(data.train)[1], whole(data.test)[1]])

    def rows(pixels: Any, digits: Any) -> list[tuple[int, ...]]:
        return sorted((int(digit), *map(int, row)) for row, digit in zip(pixels, digits, strict=True))

    assert rows((images * 16).round().tolist(), labels.tolist()) == rows(expected.data, expected.target)


def test_torchvisions_sets_are_in_memory_as_they_are(tmp_path: Path) -> None:
    """MNIST, whose files have a header of big-endian numbers."""
    import torch
    from trainer.datasets import load_data
    from trainer.flags import parse

    pixels = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    directory = tmp_path / "MNIST/raw"
    directory.mkdir(parents=True)
    for name, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        images = np.array([0x0803, len(pixels[part]), 28, 28], ">u4").tobytes() + pixels[part].tobytes()
        (directory / f"{name}-images-idx3-ubyte").write_bytes(images)
        (directory / f"{name}-labels-idx1-ubyte").write_bytes(
            np.array([0x0801, len(labels[part])], ">u4").tobytes() + labels[part].tobytes()
        )

    data = load_data(parse(["--data", "mnist", "--data-dir", str(tmp_path), "--batch-size", "4"], 1), 1)

    assert (data.train.shape, data.train.dtype, data.classes, len(data.mean)) == ((1, 28, 28), torch.uint8, 10, 1)
    for source, part in ((data.train, slice(0, 20)), (data.test, slice(20, 30))):
        found = whole(source)
        assert torch.equal(found[0][:, 0], torch.from_numpy(pixels[part]))
        assert found[1].tolist() == labels[part].tolist()


def test_a_synthetic_sample_is_the_same_in_every_batch_and_source() -> None:
    import torch
    from trainer.datasets.synthetic import Synthetic

    def made(numbers: list[int], seed: int = 1, first: int = 0) -> tuple[Tensor, Tensor]:
        images, labels = (
            torch.empty(len(numbers), 3, 16, 12, dtype=torch.uint8),
            torch.empty(len(numbers), dtype=torch.int64),
        )
        source = Synthetic((3, 16, 12), classes=5, samples=10, seed=seed, first=first)
        assert source.fill(np.array(numbers), 0, images, labels) == []
        return images, labels

    images, labels = made([3, 7])

    assert labels.tolist() == [3, 2]
    assert torch.equal(made([7])[0][0], images[1])
    assert not torch.equal(made([7], seed=2)[0][0], images[1])
    assert torch.equal(made([0], first=7)[0][0], images[1])
    assert not torch.equal(images[0], images[1])
