"""`--reader webdataset`: shards streamed by the webdataset library, also remote (https:) or piped (pipe:curl ...).

Every rank draws shards at random, with replacement, and shuffles samples in a buffer. That needs no index and no
seeking, but a sample may come twice in an epoch or not at all, and a resumed run continues with different samples: no
seed is given, with which each start would draw the same shards again.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import TYPE_CHECKING, Any, Iterator

from trainer.datasets import shard_index, shards
from trainer.datasets.dataset import IMAGENET_MEAN, IMAGENET_STD, Data, Dataset
from trainer.decode import need_torchvision
from trainer.errors import InputError, TrainingError
from trainer.sources import EncodedImages

if TYPE_CHECKING:
    from trainer.config import Config

BUFFER = 1000
"""Size of the shuffle buffer, in samples."""
FRUITLESS = 20
"""Shards in a row without a sample before the run fails: the library would draw shards forever."""


class Stream:
    """The next sample of the stream, whatever number is asked for."""

    def __init__(self, urls: str, samples: int) -> None:
        import webdataset

        shuffled = webdataset.DataPipeline(
            webdataset.ResampledShards(urls),
            self._drawn,
            webdataset.tarfile_to_samples(handler=self._warn),
            self._found,
            webdataset.shuffle(BUFFER, initial=min(BUFFER, samples)),
        )
        self.urls, self.samples = urls, samples
        self._next: Iterator[dict[str, Any]] = iter(shuffled)
        self._turn, self._last = threading.Lock(), threading.local()
        self._fruitless, self._why = 0, "no samples in it"

    def __len__(self) -> int:
        return self.samples

    def read(self, number: int) -> tuple[bytearray, int]:  # noqa: ARG002
        """An image's bytes and its class; raises `OSError`."""
        with self._turn:
            if self._fruitless > FRUITLESS:  # the generator raised in another thread, and cannot continue
                raise self._nothing()
            sample = next(self._next)
        self._last.name = f"{sample.get('__url__', self.urls)}: {sample['__key__']}"
        image = next((sample[kind] for kind in shard_index.IMAGES if kind in sample), None)
        label = None
        for kind in ("cls", "json"):
            label = shard_index.label_of(sample[kind], label) if kind in sample else label
        if image is None or label is None:
            raise OSError("a sample without an image or a class")
        return bytearray(image), label

    def _drawn(self, drawn: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Count the shards in a row without a sample."""
        for shard in drawn:
            self._fruitless += 1
            if self._fruitless > FRUITLESS:
                raise self._nothing()
            yield shard

    def _found(self, samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            self._fruitless = 0
            yield sample

    def _warn(self, error: Exception) -> bool:
        """Report a shard that cannot be read, and continue with the next."""
        self._why = " ".join(map(str, error.args))
        print(f"warning: {self._why}", file=sys.stderr, flush=True)
        return True

    def _nothing(self) -> TrainingError:
        return TrainingError(
            f"--data {self.urls}: {FRUITLESS} shards in a row have no samples; of the last one: {self._why}"
        )

    def name(self, number: int) -> str:  # noqa: ARG002
        """The name of the sample that this thread read last."""
        return getattr(self._last, "name", self.urls)


def load(config: Config) -> Data:
    """Training samples as a stream, test samples from shards with an index; raises `InputError`."""
    if importlib.util.find_spec("webdataset") is None:
        raise InputError("--reader webdataset needs webdataset: pip install webdataset")
    need_torchvision("--reader webdataset")
    if config.classes is None or config.test_data is None:
        raise InputError(
            "--reader webdataset needs --classes and --test-data: a stream does not say how many there are"
        )
    if not config.data.startswith("pipe:") and "://" not in config.data:
        shards.expand(config.data)
    test = shards.open_shards(config.test_data)
    options: dict[str, Any] = {"seed": config.seed, "augment": config.augment, "strict": config.strict}
    options["classes"] = config.classes
    train = EncodedImages(Stream(config.data, config.samples), config.image_shape, **options)
    testing = EncodedImages(test, config.image_shape, **options)
    return Data(train, testing, config.classes, IMAGENET_MEAN, IMAGENET_STD, test.problems)


DATASETS = (Dataset(load, takes=lambda _data, reader: reader == "webdataset", epochs=1),)
