"""From an image's bytes to its place in a batch: decode, crop, resize and flip as uint8."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any, Sequence

import torch
from torch import Tensor

from trainer.errors import InputError
from trainer.torch_private import resize_into

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRIES = 10
"""How many crops are drawn at most until one fits in the image, as in torchvision's RandomResizedCrop."""
DRAWS = 4 * TRIES + 1
"""Random numbers that the augmentation of one image needs."""
AREA, RATIO = (0.08, 1.0), (math.log(3 / 4), math.log(4 / 3))
EVAL_CROP = 0.875
"""Share of the shorter side that evaluation uses: 224 of 256."""


def decode(blob: bytearray, channels: int) -> Tensor:
    """uint8 of shape (channels, height, width), strided as the decoder leaves it; raises `RuntimeError`."""
    from torchvision.io import ImageReadMode, decode_image

    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    image: Tensor = decode_image(torch.frombuffer(blob, dtype=torch.uint8), mode)
    return image


def need_torchvision(what: str) -> None:
    """Raise `InputError` if torchvision is missing."""
    if importlib.util.find_spec("torchvision") is None:
        raise InputError(f"{what} needs torchvision: pip install torchvision")


def random_crop(height: int, width: int, draws: Sequence[float]) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop: torchvision's RandomResizedCrop, with given random numbers.

    `draws` are numbers in [0, 1), four per try. Source: Szegedy et al., "Going deeper with convolutions".
    """
    area = height * width
    for number in range(0, 4 * TRIES, 4):
        share, shape, down, right = draws[number : number + 4]
        target = area * (AREA[0] + share * (AREA[1] - AREA[0]))
        ratio = math.exp(RATIO[0] + shape * (RATIO[1] - RATIO[0]))
        crop_width, crop_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            return (
                int(down * (height - crop_height + 1)),
                int(right * (width - crop_width + 1)),
                crop_height,
                crop_width,
            )
    narrow, wide = math.exp(RATIO[0]), math.exp(RATIO[1])
    crop_height = min(height, round(width / narrow)) if width < narrow * height else height
    crop_width = min(width, round(height * wide)) if width > wide * height else width
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def center_crop(height: int, width: int, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Top, left, height and width of the central crop for evaluation, in the proportions of `shape`."""
    scale = min(height / shape[0], width / shape[1]) * EVAL_CROP
    crop_height, crop_width = max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def place(image: Tensor, slot: Tensor, draws: Sequence[float] | None) -> None:
    """Write a crop of `image`, resized, to `slot`; both are (channels, height, width), of any size.

    Crop and flip are random by `draws`; without them the crop is the centre. The result is that of
    transforms.v2.functional.resized_crop with antialias, which would take an extra copy: here the underlying kernel
    writes to the batch itself.
    """
    height, width = slot.shape[-2:]
    source = image.shape[-2:]
    box = random_crop(source[0], source[1], draws) if draws else center_crop(source[0], source[1], (height, width))
    top, left, crop_height, crop_width = box
    part = image[None, :, top : top + crop_height, left : left + crop_width]
    resize_into(slot[None], part)
    if draws and draws[-1] < 0.5:
        slot.copy_(slot.flip(-1))


def shift_and_flip(images: Tensor, draws: NDArray[Any], flip: bool, pad: int = 4) -> Tensor:
    """Augment small images: shift each by up to `pad` pixels, padded with zeros, and if `flip`, mirror a random half.

    `images` is (n, channels, height, width) of any type, `draws` (n, 3); the result is a new tensor.
    """
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad))
    moved = torch.empty_like(images)
    for number, (down, right, mirror) in enumerate(draws.tolist()):
        top, left = int(down * (2 * pad + 1)), int(right * (2 * pad + 1))
        part = padded[number, :, top : top + height, left : left + width]
        moved[number] = part.flip(-1) if flip and mirror < 0.5 else part
    return moved
