"""Sources of samples. A source writes the samples of given numbers to their places in a batch, from any thread.

`fill(numbers, epoch, images, labels)` writes to `images`, (n, channels, height, width) of the source's `dtype`, and to
`labels`, int64 of shape (n,), and returns the places of damaged samples. `epoch` chooses the augmentation; None for
none.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from trainer import decode, order
from trainer.errors import TrainingError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Protocol

    Shape = tuple[int, int, int]
    Numbers = NDArray[np.int64]

    class Source(Protocol):
        """What the loader takes samples from."""

        shape: Shape
        """Channels, height, width."""

        dtype: torch.dtype
        """uint8 for images that are normalised on the device, else float32."""

        decodes: bool
        """Whether a sample takes long enough for threads to be worthwhile."""

        def __len__(self) -> int: ...

        def fill(self, numbers: Numbers, epoch: Optional[int], images: Tensor, labels: Tensor) -> list[int]:
            """See the module's docstring."""

        def name(self, number: int) -> str:
            """The name of a sample in messages."""

    class Files(Protocol):
        """Encoded images and their classes: `datasets.shards.ShardSet`, `datasets.directory.Directory`."""

        def __len__(self) -> int: ...

        def read(self, number: int) -> tuple[bytearray, int]:
            """An image's bytes and its class; raises `OSError`."""

        def name(self, number: int) -> str:
            """The name of a sample in messages."""


NAMED = 10
"""Damaged samples that each rank names; further ones are only counted."""


class InMemory:
    """Samples in memory: `images` (n, channels, height, width), `labels` (n,); augmented by `moves` and `flips`."""

    decodes = False

    def __init__(
        self, images: Tensor, labels: Tensor, *, seed: int = 0, moves: bool = False, flips: bool = False
    ) -> None:
        self.images, self.labels, self.seed, self.moves, self.flips = images, labels, seed, moves, flips
        channels, height, width = images.shape[1:]
        self.shape, self.dtype = (channels, height, width), images.dtype

    def __len__(self) -> int:
        return len(self.labels)

    def fill(self, numbers: Numbers, epoch: Optional[int], images: Tensor, labels: Tensor) -> list[int]:
        """See the module's docstring."""
        chosen = torch.from_numpy(numbers)
        picked = self.images[chosen]
        if epoch is not None and self.moves:
            picked = decode.shift_and_flip(picked, order.uniforms(numbers, 3, order.key(self.seed, epoch)), self.flips)
        images.copy_(picked)
        labels.copy_(self.labels[chosen])
        return []

    def name(self, number: int) -> str:
        """See `Source`."""
        return f"sample {number}"


class EncodedImages:
    """Images of any size in `files`, decoded, cropped and resized to `shape`."""

    decodes, dtype = True, torch.uint8

    def __init__(
        self,
        files: Files,
        shape: Shape,
        *,
        seed: int,
        augment: bool,
        strict: bool = False,
        classes: int | None = None,
    ) -> None:
        self.files, self.shape, self.seed, self.augment, self.strict = files, shape, seed, augment, strict
        self.classes = classes
        self.damaged: set[int] = set()
        """Numbers of the samples that this rank could not use so far."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.files)

    def fill(self, numbers: Numbers, epoch: Optional[int], images: Tensor, labels: Tensor) -> list[int]:
        """See the module's docstring. If `strict`, raises `TrainingError` for a damaged image."""
        draws: Sequence[Any] = [None] * len(numbers)
        if epoch is not None and self.augment:
            draws = order.uniforms(numbers, decode.DRAWS, order.key(self.seed, epoch)).tolist()
        bad = []
        classes = np.empty(len(numbers), np.int64)
        for slot, number in enumerate(numbers.tolist()):
            try:
                blob, classes[slot] = self.files.read(number)
                if self.classes is not None and not 0 <= classes[slot] < self.classes:
                    raise ValueError(f"class {classes[slot]} is not one of the {self.classes}")  # noqa: TRY301
                decode.place(decode.decode(blob, self.shape[0]), images[slot], draws[slot])
            except TrainingError:
                raise  # no samples are left to continue with
            except (RuntimeError, OSError, ValueError) as error:
                self._report(number, error)
                bad.append(slot)
                classes[slot] = 0
        labels.copy_(torch.from_numpy(classes))
        return bad

    def name(self, number: int) -> str:
        """See `Source`."""
        return self.files.name(number)

    def _report(self, number: int, error: Exception) -> None:
        text = f"{self.files.name(number)}: {(str(error).splitlines() or [''])[0]}"
        if self.strict:
            raise TrainingError(f"{text} (--strict)") from error
        with self._lock:
            known, count = number in self.damaged, len(self.damaged)
            self.damaged.add(number)
        if not known and count < NAMED:
            sys.stderr.write(f"skipped {text}{'; further ones are counted only' if count == NAMED - 1 else ''}\n")


class Part:
    """A fixed random part of another source: places `first` to `first + count` in a permutation of its samples."""

    def __init__(self, source: Source, first: int, count: int) -> None:
        self.source, self.first, self.count = source, first, count
        self.shape, self.dtype, self.decodes = source.shape, source.dtype, source.decodes

    def __len__(self) -> int:
        return self.count

    def fill(self, numbers: Numbers, epoch: Optional[int], images: Tensor, labels: Tensor) -> list[int]:
        """See the module's docstring."""
        return self.source.fill(self._theirs(numbers), epoch, images, labels)

    def name(self, number: int) -> str:
        """See `Source`."""
        return self.source.name(int(self._theirs(np.array([number]))[0]))

    def _theirs(self, numbers: Numbers) -> Numbers:
        return order.permute(numbers + self.first, len(self.source), 0)
