"""Make WebDataset shards from a directory of images, one of torchvision's data sets, or synthetic photographs.

    python make_shards.py DIRECTORY OUT                      a directory per class, JPEGs copied unchanged
    python make_shards.py cifar10 OUT --data-dir DIR         torchvision's training set, as PNG (--test: its test set)
    python make_shards.py synthetic OUT --samples 1000       generated, as JPEG

Writes OUT/data-000000.tar and so on, shuffled by the seed, with an image and a `cls` member per sample, and an index
per shard. `train.py --data 'OUT/data-{000000..000127}.tar'`, or `--data OUT`, trains on them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch.nn.functional import interpolate
from trainer import order
from trainer.datasets import directory as directories
from trainer.datasets import imagenet, shard_index, shards, small
from trainer.errors import InputError
from trainer.files import whole


class Origin(NamedTuple):
    """A source of samples."""

    samples: int
    classes: Sequence[str]
    read: Callable[[int], tuple[str, bytes, int]]
    """Maps a sample's number to the suffix and the bytes of its image, and its class."""


def from_directory(directory: str) -> Origin:
    """The images below `directory`, byte for byte."""
    if os.path.isdir(os.path.join(directory, "train")):
        raise InputError(
            f"{directory} has data sets in it, not classes: make shards of {directory}/train and the others"
        )
    files = directories.open_directory(directory)

    def read(number: int) -> tuple[str, bytes, int]:
        blob, label = files.read(number)
        suffix = os.path.splitext(files.name(number))[1][1:].lower()
        return {"jpeg": "jpg"}.get(suffix, suffix), bytes(blob), label

    return Origin(len(files), files.classes, read)


def from_torchvision(name: str, data_dir: str, *, train: bool, download: bool) -> Origin:
    """CIFAR or MNIST as PNG, or ImageNet's files unchanged."""
    if name == "imagenet":
        files = imagenet.open_set(data_dir, train=train)
        return Origin(len(files), files.classes, lambda number: ("jpg", *_plain(files.read(number))))
    from torchvision.io import encode_png

    found = small.open_set(name, data_dir, train=train, download=download)

    def read(number: int) -> tuple[str, bytes, int]:
        pixels = torch.as_tensor(found.data[number])
        image = pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        return "png", encode_png(image.contiguous()).numpy().tobytes(), int(found.targets[number])

    return Origin(len(found), found.classes, read)


def synthetic(samples: int, classes: int, shape: tuple[int, int, int], seed: int, quality: int = 92) -> Origin:
    """Synthetic photographs: noise at all scales, as strong at each as in real ones, tinted by class."""
    from torchvision.io import encode_jpeg

    channels, height, width = shape

    def read(number: int) -> tuple[str, bytes, int]:
        generator = torch.Generator().manual_seed(order.key(seed, number) >> 1)
        label, image = number % classes, torch.zeros(1, channels, height, width)
        side = 4
        while side <= min(height, width):
            noise = torch.randn(1, channels, side, side, generator=generator) / side**0.5
            image += interpolate(noise, size=(height, width), mode="bilinear")
            side *= 2
        colour = torch.tensor([np.cos(2 * np.pi * (label / classes + channel / 3)) for channel in range(channels)])
        image = (image * 60 + 128 + 60 * colour.view(1, -1, 1, 1)).clamp(0, 255).to(torch.uint8)
        return "jpg", encode_jpeg(image[0], quality).numpy().tobytes(), label

    return Origin(samples, [str(label) for label in range(classes)], read)


def write_shards(origin: Origin, out: Path, per_shard: int, seed: int, name: str = "data") -> list[Path]:
    """Write the shards, each under its name only when complete, and their indices; return the shards' paths.

    Raises `InputError` if `out` has further shards of that name, which would be read with these.
    """
    if importlib.util.find_spec("webdataset") is None:
        raise InputError("making shards needs webdataset: pip install webdataset")
    from webdataset import TarWriter

    paths = [out / f"{name}-{shard:06d}.tar" for shard in range(-(-origin.samples // per_shard))]
    others = sorted(path for path in out.glob("*.tar") if path not in paths and path.stem.rpartition("-")[0] == name)
    if others:
        raise InputError(
            f"{others[0]} is of other shards than these {len(paths)}: remove them, or choose another --name"
        )
    numbers = order.permute(np.arange(origin.samples), origin.samples, order.key(seed)).tolist()
    out.mkdir(parents=True, exist_ok=True)
    for shard, path in enumerate(paths):
        first = shard * per_shard
        with whole(path) as part, TarWriter(str(part), encoder=False) as tar:
            for place, number in enumerate(numbers[first : first + per_shard], first):
                suffix, blob, label = origin.read(number)
                tar.write({"__key__": f"{place:08d}", suffix: blob, "cls": str(label).encode()})
        shard_index.build(str(path))
    return paths


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Make the shards; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="make_shards.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", help=f"a directory, synthetic, imagenet, {', '.join(small.PIXELS)}")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--name", default="data", help="what the shards' names begin with (%(default)s)")
    parser.add_argument("--samples-per-shard", type=int, default=1000, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle (%(default)s)")
    parser.add_argument(
        "--data-dir", default="~/.cache/torch/datasets", metavar="DIR", help="where torchvision's data sets are"
    )
    parser.add_argument("--test", action="store_true", help="the test set of torchvision's data set")
    parser.add_argument("--download", action="store_true", help="let torchvision download its data set")
    parser.add_argument("--samples", type=int, default=1000, help="of the synthetic data (%(default)s)")
    parser.add_argument("--classes", type=int, default=10, help="of the synthetic data (%(default)s)")
    parser.add_argument("--size", default="375x500", metavar="HxW", help="of the synthetic images (%(default)s)")
    args = parser.parse_args(argv)
    try:
        if args.samples_per_shard < 1 or args.samples < 1 or args.classes < 1:
            raise InputError("--samples, --classes and --samples-per-shard must be at least 1")  # noqa: TRY301
        written = write_shards(_origin(args), args.out, args.samples_per_shard, args.seed, args.name)
    except (InputError, OSError) as error:
        sys.stderr.write(f"make_shards.py: error: {error}\n")
        return 2
    samples, size = shards.open_shards("::".join(map(str, written))), sum(path.stat().st_size for path in written)
    sys.stdout.write(
        f"{len(samples):,} samples of {samples.classes} classes in {len(written)} shards, {size / 1e6:,.1f} MB: "
        f"{args.out}\n"
    )
    return 0


def _origin(args: argparse.Namespace) -> Origin:
    data_dir = os.path.expanduser(args.data_dir)
    if args.source == "synthetic":
        height, _, width = args.size.partition("x")
        if not (height.isdecimal() and width.isdecimal()):
            raise InputError(f"--size {args.size} is not of the form 375x500")
        return synthetic(args.samples, args.classes, (3, int(height), int(width)), args.seed)
    if args.source in (*small.PIXELS, "imagenet"):
        return from_torchvision(args.source, data_dir, train=not args.test, download=args.download)
    return from_directory(args.source)


def _plain(read: tuple[bytearray, int]) -> Any:
    return bytes(read[0]), read[1]


if __name__ == "__main__":
    sys.exit(main())
