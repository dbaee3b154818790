"""The interface of a data set, and what data sets of images share."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from trainer.decode import need_torchvision
from trainer.errors import InputError
from trainer.sources import EncodedImages, Part

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.sources import Files, Shape, Source

HELD_OUT = 0.1
"""Share of the samples that becomes the test set if the data has none."""
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@dataclass(frozen=True)
class Data:
    """A training and a test set."""

    train: Source
    test: Source
    classes: int
    mean: tuple[float, ...] = ()
    """Of pixels from 0 to 255, by channel; empty if samples already have mean near 0 and deviation near 1."""

    std: tuple[float, ...] = ()
    problems: list[str] = field(default_factory=list)
    """Problems that leave the data usable, one line each."""


@dataclass(frozen=True)
class Dataset:
    """A data set that `--data` can select, and its defaults."""

    load: Callable[[Config], Data]
    """Raises `InputError`."""

    name: str = ""
    """The value of `--data`; if empty, `takes` decides."""

    takes: Callable[[str, str], bool] = lambda _data, _reader: False
    """Whether these values of `--data` and `--reader` select it. At most one data set takes a value."""

    prepare: Optional[Callable[[Config, int, int], None]] = None
    """Prepares what ranks share before they load; takes the rank and the world size. Raises `InputError`."""

    small: Optional[Shape] = None
    """Image shape for the small model. If set, `--model auto` is the small model."""

    side: int = 224
    """Height and width of images for other models, in pixels."""

    epochs: int = 90


def encoded(config: Config, train: Files, test: Optional[Files], classes: Optional[int] = None) -> Data:
    """Data of images to decode; without a test set, a fixed tenth of them is held out."""
    need_torchvision(f"--data {config.data}")
    known = classes or len(train.classes)  # type: ignore[attr-defined]  # only directories come without `classes`
    options: dict[str, Any] = {"seed": config.seed, "augment": config.augment, "strict": config.strict}
    make: Callable[[Files], EncodedImages] = partial(EncodedImages, shape=config.image_shape, classes=known, **options)
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


@contextmanager
def in_turn(root: str) -> Iterator[None]:
    """Within the block, no other rank that shares the disk of `root` is in it."""
    with ExitStack() as held:
        with suppress(OSError):  # nothing can be written there, or the disk has no locks
            fcntl.flock(held.enter_context(open(os.path.join(root, ".lock"), "a")), fcntl.LOCK_EX)
        yield


def from_torchvision(name: str, root: str, advice: str, make: Callable[[], Any]) -> Any:
    """The data set that `make` opens below `root`; raises `InputError` if it is not there."""
    try:
        return make()
    except (RuntimeError, OSError) as error:
        raise InputError(f"--data {name}: not in {root}; {advice} ({(str(error).splitlines() or [''])[0]})") from error
