"""All private names of torch that the trainer uses, each with a public fallback for a torch that lacks it.

Fallbacks give the same result, with an extra copy or more kernel launches. Only counting operations has none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch

try:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
except ImportError:
    SEES_OPERATIONS = False
    """Whether a subclass of `TorchDispatchMode` receives each operation."""

    TorchDispatchMode = object  # type: ignore[assignment, misc]
    tree_leaves = list  # type: ignore[assignment]
else:
    SEES_OPERATIONS = True

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SEES_OPERATIONS", "TorchDispatchMode", "copy_each", "has_fast_bfloat16", "resize_into", "tree_leaves"]


def copy_each(into: list[Tensor], values: list[Tensor], *, non_blocking: bool = False) -> None:
    """Copy each of `values` to the tensor at its place in `into`, with as few kernels as torch can."""
    every = getattr(torch, "_foreach_copy_", None)
    if every is not None:
        every(into, values, non_blocking=non_blocking)
        return
    for target, value in zip(into, values):
        target.copy_(value, non_blocking=non_blocking)


def resize_into(slot: Tensor, images: Tensor) -> None:
    """Write `images` (n, channels, height, width), resized with antialias, to `slot` (n, channels, any, any)."""
    size = list(slot.shape[-2:])
    kernel = getattr(getattr(torch.ops.aten, "_upsample_bilinear2d_aa", None), "out", None)
    if kernel is not None:  # interpolate would take an extra copy
        kernel(images, size, False, None, None, out=slot)
        return
    slot.copy_(torch.nn.functional.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True))


def has_fast_bfloat16() -> bool:
    """Whether this CPU computes faster in bfloat16 than in float32; False if torch cannot tell.

    With AVX512-BF16 alone, Intel's do not: a training step takes half as long again.
    """
    has_dots, has_tiles = (
        bool(getattr(torch.cpu, name, lambda: False)())
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return has_tiles or (has_dots and not _is_of_intel())


def _is_of_intel() -> bool:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return "GenuineIntel" in file.read()
    return False
