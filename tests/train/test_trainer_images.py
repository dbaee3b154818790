"""How images are cropped, moved and mirrored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.train.photographs import spelt_out

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_images_are_cropped_as_torchvision_crops_them(photographs: Path) -> None:
    import torch
    from torchvision.transforms.v2 import functional
    from trainer import decode
    from trainer.datasets import shards

    blob, _ = shards.open_shards(spelt_out(photographs)).read(5)
    image, slot = (
        decode.decode(blob, 3),
        torch.empty(3, 24, 32, dtype=torch.uint8).to(memory_format=torch.contiguous_format),
    )
    slot = torch.empty(1, 3, 24, 32, dtype=torch.uint8, memory_format=torch.channels_last)[0]
    draws = [0.5, 0.5, 0.25, 0.75] * decode.TRIES + [0.9]

    decode.place(image, slot, draws)

    top, left, height, width = decode.random_crop(40, 50, draws)
    expected = functional.resized_crop(image, top, left, height, width, [24, 32], antialias=True)
    assert torch.equal(slot, expected)
    decode.place(image, slot, [*draws[:-1], 0.1])
    assert torch.equal(slot, expected.flip(-1))


def test_the_evaluation_looks_at_the_middle() -> None:
    import torch
    from trainer import decode

    image = torch.arange(40 * 80, dtype=torch.uint8).view(1, 40, 80)
    slot = torch.empty(1, 1, 35, 35, dtype=torch.uint8)[0]

    decode.place(image, slot, None)

    assert decode.center_crop(40, 80, (32, 32)) == (2, 22, 35, 35), "seven eighths of the shorter side"
    assert torch.equal(slot, image[:, 2:37, 22:57])


def test_small_images_are_moved_by_up_to_four_pixels_and_mirrored() -> None:
    import torch
    from trainer import decode

    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).repeat(4, 1, 1, 1)
    draws = np.array([[0.5, 0.5, 0.9], [0.0, 0.5, 0.9], [0.5, 0.999, 0.9], [0.5, 0.5, 0.1]])

    same, down, left, mirrored = decode.shift_and_flip(images, draws, flip=True)[:, 0]

    assert torch.equal(same, images[0, 0])
    assert torch.equal(down[4:], images[0, 0, :4])
    assert down[:4].eq(0).all()
    assert torch.equal(left[:, :4], images[0, 0, :, 4:])
    assert left[:, 4:].eq(0).all()
    assert torch.equal(mirrored, images[0, 0].flip(-1))
    assert torch.equal(decode.shift_and_flip(images, draws, flip=False)[3, 0], images[0, 0])


def test_crops_are_distributed_as_torchvisions() -> None:
    """Mean and deviation of every side of the crop, over 4,000 of each."""
    import torch
    from torchvision.transforms import RandomResizedCrop
    from trainer import decode

    torch.manual_seed(0)
    image = torch.empty(1, 300, 500)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    ours = np.array(
        [decode.random_crop(300, 500, draws) for draws in np.random.default_rng(0).random((4000, decode.DRAWS))]
    )

    error = theirs.std(0) / 4000**0.5
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 5 * error).all()
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.08)


def test_gray_and_upright_images_fit(tmp_path: Path) -> None:
    import torch
    from torchvision.io import decode_jpeg, encode_jpeg
    from trainer import decode

    slot = torch.empty(1, 3, 16, 16, dtype=torch.uint8, memory_format=torch.channels_last)[0]
    gray = encode_jpeg(torch.full((1, 90, 20), 200, dtype=torch.uint8))
    decode.place(decode.decode(bytearray(gray.numpy().tobytes()), 3), slot, None)

    assert (slot.float() - decode_jpeg(gray).float().mean()).abs().max() < 3
