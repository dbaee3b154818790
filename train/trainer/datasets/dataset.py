"""What a data set is, and what those of images have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional

from trainer.decode import need_torchvision
from trainer.errors import InputError
from trainer.sources import EncodedImages, Part

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.sources import Files, Shape, Source

HELD_OUT = 0.1
"""Share of the samples that becomes the test set where the data has none."""
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


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


@dataclass(frozen=True)
class Dataset:
    """What `--data` can mean, and the defaults that it brings."""

    load: Callable[[Config], Data]
    """Raises `InputError`."""

    name: str = ""
    """The value of `--data`; without one `takes` decides."""

    takes: Callable[[str, str], bool] = lambda _data, _reader: False
    """Whether it is meant by these values of `--data` and `--reader`. At most one data set takes a value."""

    prepare: Optional[Callable[[Config, int, int], None]] = None
    """What ranks share before they load: called with this rank and the world size. Raises `InputError`."""

    small: Optional[Shape] = None
    """What the small model sees. With it, `--model auto` is the small model."""

    side: int = 224
    """Height and width that other models see, in pixels."""

    epochs: int = 90


def encoded(config: Config, train: Files, test: Optional[Files], classes: Optional[int] = None) -> Data:
    """Images to decode; without a test set a tenth of them, fixed, is held out."""
    need_torchvision(f"--data {config.data}")
    known = classes or len(train.classes)  # type: ignore[attr-defined]  # directories know their names
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


def from_torchvision(name: str, root: str, advice: str, make: Callable[[], Any]) -> Any:
    """What `make` opens below `root`; raises `InputError` where it is not there."""
    try:
        return make()
    except (RuntimeError, OSError) as error:
        raise InputError(f"--data {name}: not in {root}; {advice} ({(str(error).splitlines() or [''])[0]})") from error
