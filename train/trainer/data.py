"""What `--data` names: a training and a test set."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trainer import folders, shards
from trainer.decode import need_torchvision
from trainer.errors import InputError
from trainer.sources import EncodedImages, InMemory, Part, Synthetic

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.sources import Files, Source

DIGITS_SPLIT_SEED = 0
"""Fixed, whatever `--seed` says: no run ever trains on another's test samples, and accuracies can be compared."""
HELD_OUT = 0.1
"""Share of the samples that becomes the test set where the data has none."""
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SMALL_SETS = {
    "mnist": ((33.3,), (78.6,)),
    "fashion-mnist": ((72.9,), (90.0,)),
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}
"""torchvision's sets that fit in memory, with mean and deviation of their pixels (0 to 255), by channel."""


@dataclass(frozen=True)
class Data:
    """A training and a test set."""

    train: Source
    test: Source
    classes: int
    mean: tuple[float, ...] = ()
    """Of pixels from 0 to 255, by channel; empty where samples come as they are, with mean near 0 and deviation near 1."""

    std: tuple[float, ...] = ()
    problems: list[str] = field(default_factory=list)
    """What is wrong with the data without making it useless, a line each."""


def is_shards(data: str) -> bool:
    """Whether `--data` means WebDataset shards."""
    return data.endswith(".tar") or "{" in data or "::" in data or (os.path.isdir(data) and bool(list(Path(data).glob("*.tar"))))


def index_share(config: Config, rank: int, world_size: int) -> None:
    """Build this rank's share of the indices that shards still need; raises `InputError`."""
    if (
        config.data not in (*SMALL_SETS, "digits", "synthetic", "imagenet")
        and config.reader == "index"
        and is_shards(config.data)
    ):
        for pattern in filter(None, (config.data, config.test_data)):
            shards.build_share(pattern, rank, world_size)


def load_data(config: Config, world_size: int) -> Data:
    """The data that `config` names; raises `InputError` when it is not to be had, or less than one step of all ranks."""
    if config.data == "digits":
        data = _digits(config)
    elif config.data == "synthetic":
        data = _synthetic(config)
    elif config.data in SMALL_SETS:
        data = _small_set(config)
    elif config.data == "imagenet":
        need_torchvision("--data imagenet")
        root = os.path.expanduser(config.data_dir)
        data = _encoded(config, folders.imagenet(root, train=True), folders.imagenet(root, train=False))
    elif config.reader == "webdataset":
        from trainer.stream import load_stream  # needs the webdataset package

        data = load_stream(config)
    elif is_shards(config.data):
        data = _shards(config)
    else:
        data = _folder(config)
    step_samples, samples = config.batch_size * world_size, len(data.train)
    if step_samples > samples:
        most = samples // world_size
        advice = f"--batch-size can be at most {most}" if most else f"start at most {samples} ranks"
        raise InputError(
            f"--batch-size {config.batch_size} on {world_size} rank{'s' * (world_size > 1)} makes {step_samples} samples a step, "
            f"more than the {samples} training samples of {config.data}; {advice}"
        )
    return data


def _digits(config: Config) -> Data:
    """The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships, a fifth of each class to test."""
    table = _read_digits()
    images, labels = table[:, :64].float().reshape(-1, 1, 8, 8), table[:, 64].long()
    images = (images / 16 - 0.305) / 0.376  # mean and deviation over all pixels
    channels, height, width = config.image_shape
    if (height, width) != (8, 8):
        images = interpolate(images, size=(height, width), mode="bilinear", align_corners=False)
    images = images.expand(-1, channels, -1, -1)
    train, test = stratified_split(labels, test_fraction=0.2, seed=DIGITS_SPLIT_SEED)
    return Data(InMemory(images[train], labels[train]), InMemory(images[test], labels[test]), classes=10)


def _read_digits() -> Tensor:
    """uint8 of shape (1797, 65): the pixels, 0 to 16, and the digit."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise InputError("--data digits needs scikit-learn, which ships them: pip install scikit-learn")
    import numpy as np

    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():  # reading it ourselves takes 5 ms, importing sklearn.datasets a second
        return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.uint8))
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.from_numpy(np.column_stack([digits.data, digits.target]).astype(np.uint8))


def stratified_split(labels: Tensor, test_fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Sample numbers to train on and to test on, ascending, with the same share of every class (of shape (n,) both)."""
    generator = torch.Generator().manual_seed(seed)
    testing = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().flatten()
        chosen = torch.randperm(len(members), generator=generator)[: round(len(members) * test_fraction)]
        testing[members[chosen]] = True
    return (~testing).nonzero().flatten(), testing.nonzero().flatten()


def _synthetic(config: Config) -> Data:
    classes, channels = config.classes or 10, config.image_shape[0]
    test_samples = max(1, config.samples // 8)
    train = Synthetic(config.image_shape, classes, config.samples, config.seed, first=0)
    test = Synthetic(config.image_shape, classes, test_samples, config.seed, first=config.samples)
    return Data(train, test, classes, (127.0,) * channels, (47.0,) * channels)


def _small_set(config: Config) -> Data:
    """CIFAR or MNIST, whole in memory as uint8."""
    need_torchvision(f"--data {config.data}")
    root = os.path.expanduser(config.data_dir)
    sets = [folders.torchvision_set(config.data, root, train=train, download=config.download) for train in (True, False)]
    images = [torch.as_tensor(one.data) for one in sets]
    images = [pixels.permute(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None] for pixels in images]
    channels, height, width = config.image_shape
    if tuple(images[0].shape[2:]) != (height, width):
        images = [interpolate(pixels, size=(height, width), mode="bilinear", antialias=True) for pixels in images]
    images = [pixels.expand(-1, channels, -1, -1) for pixels in images]
    labels = [torch.as_tensor(one.targets) for one in sets]
    natural = config.data.startswith("cifar")
    train = InMemory(images[0], labels[0], seed=config.seed, moves=config.augment and natural, flips=natural)
    mean, std = SMALL_SETS[config.data]
    scale = channels // len(mean)
    return Data(train, InMemory(images[1], labels[1]), len(sets[0].classes), mean * scale, std * scale)


def _shards(config: Config) -> Data:
    train = shards.open_shards(config.data)
    test = shards.open_shards(config.test_data) if config.test_data else None
    data = _encoded(config, train, test, config.classes or train.classes)
    data.problems.extend(problem for one in (train, test) if one for problem in one.problems)
    if config.strict and data.problems:
        raise InputError(f"{data.problems[0]} (--strict)")
    if test and test.classes > data.classes:
        raise InputError(f"--test-data has labels up to {test.classes - 1}, --data has {data.classes} classes")
    if train.classes > data.classes:
        raise InputError(f"--data {config.data} has labels up to {train.classes - 1}, but --classes is {data.classes}")
    return data


def _folder(config: Config) -> Data:
    """A folder of class folders, or one with `train` and `val` (or `test`) in it."""
    root = os.path.expanduser(config.data)
    if not os.path.isdir(root):
        known = ", ".join(["digits", "synthetic", *SMALL_SETS, "imagenet"])
        raise InputError(
            f"--data {config.data}: no such folder, and none of {known}; shards are named like data-{{000..127}}.tar"
        )
    test = os.path.expanduser(config.test_data) if config.test_data else None
    if os.path.isdir(os.path.join(root, "train")):
        inside = (os.path.join(root, name) for name in ("val", "test") if os.path.isdir(os.path.join(root, name)))
        root, test = os.path.join(root, "train"), test or next(inside, None)
    train_set, test_set = folders.open_folder(root), folders.open_folder(test) if test else None
    if test_set and test_set.classes != train_set.classes:
        odd = sorted(set(test_set.classes) ^ set(train_set.classes))
        raise InputError(f"{root} has {len(train_set.classes)} classes and {test} {len(test_set.classes)}; not in both: {odd[0]}")
    if config.classes not in (None, len(train_set.classes)):
        raise InputError(f"--classes {config.classes}, but {root} has {len(train_set.classes)} class folders")
    return _encoded(config, train_set, test_set)


def _encoded(config: Config, train: Files, test: Optional[Files], classes: Optional[int] = None) -> Data:
    """Images to decode; without a test set a tenth of them, fixed, is held out."""
    need_torchvision(f"--data {config.data}")
    known = classes or len(train.classes)  # type: ignore[attr-defined]  # folders know their names
    options: dict[str, Any] = {"seed": config.seed, "strict": config.strict, "classes": known}
    make: Callable[[Files], EncodedImages] = lambda files: EncodedImages(files, config.image_shape, **options)  # noqa: E731
    training: Source = make(train)
    if test is not None:
        testing: Source = make(test)
    elif len(train) < 2:
        raise InputError(f"--data {config.data}: {len(train)} sample, none to hold out for the test; give --test-data")
    else:
        held = max(1, round(len(train) * HELD_OUT))
        testing, training = Part(make(train), 0, held), Part(training, held, len(train) - held)
    channels = config.image_shape[0]
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((118.0,) * channels, (58.0,) * channels)
    return Data(training, testing, known, mean, std)
