"""The roofline of a model: how fast a GPU could run its training steps at best.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009, applied to each operation of a step: it takes at least its arithmetic over the GPU's
peak, and at least the bytes that it reads and writes over the memory bandwidth. Matrix products, convolutions and
attention are counted with torch's own formulas for their arithmetic, and normalisations, which read their input twice:
once for the statistics. Everything else, including the optimizer and the exchange between ranks, is taken to be fused
into these and to cost nothing.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import flop_registry

from trainer.torch_private import SEES_OPERATIONS, TorchDispatchMode, tree_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH = 32
"""Samples of the counted step: enough that the weights' share of the traffic is as small as in a real step."""


class Peak(NamedTuple):
    """A GPU's peak rates."""

    half_flops: float
    """Dense bfloat16 or float16 operations per second."""

    single_flops: float
    """float32 operations per second, without TF32."""

    convolution_flops: float
    """The same in convolutions, for which torch allows TF32 where the GPU has it."""

    bytes_per_s: float
    """Bandwidth of its memory."""


PEAKS = {
    "B200": Peak(2250e12, 75e12, 1125e12, 8.0e12),
    "H200": Peak(989e12, 67e12, 494e12, 4.8e12),
    "H100 PCIe": Peak(756e12, 51e12, 378e12, 2.0e12),
    "H100": Peak(989e12, 67e12, 494e12, 3.35e12),
    "A100-SXM4-80GB": Peak(312e12, 19.5e12, 156e12, 2.039e12),
    "A100 80GB": Peak(312e12, 19.5e12, 156e12, 1.935e12),
    "A100": Peak(312e12, 19.5e12, 156e12, 1.555e12),
    "L40S": Peak(362e12, 91.6e12, 183e12, 0.864e12),
    "A10": Peak(125e12, 31.2e12, 62.5e12, 0.6e12),
    "V100": Peak(125e12, 15.7e12, 15.7e12, 0.9e12),
    "MI300X": Peak(1307e12, 163e12, 163e12, 5.3e12),
}
"""From the vendors' data sheets, by whole words of the device's name; the first match counts."""


def peak_of(device_name: str) -> Optional[Peak]:
    """The peak of a GPU with this name; None if it is unknown."""
    return next((peak for part, peak in PEAKS.items() if re.search(rf"\b{part}\b", device_name)), None)


def outline(model: nn.Module, device: torch.device) -> Optional[nn.Module]:
    """A copy without memory, for counting; None on a CPU and on an unknown GPU, which have no peak here."""
    if device.type != "cuda" or peak_of(torch.cuda.get_device_name(device)) is None:
        return None
    return on_meta(model)


def on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model on the `meta` device."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def ceiling(model: nn.Module, image_shape: Sequence[int], dtype: torch.dtype, device_name: str) -> Optional[float]:
    """`images_per_s` of an outline on the GPU with this name; None if the model cannot be counted."""
    peak = peak_of(device_name)
    if peak is None:
        return None
    try:
        return images_per_s(model, image_shape, dtype, peak)
    except Exception:  # noqa: BLE001  # a user's model may read a tensor's values: no reason to end a training
        return None


def images_per_s(model: nn.Module, image_shape: Sequence[int], dtype: torch.dtype, peak: Peak) -> float:
    """The most images (channels, height, width) per second on which one GPU could train `model`, computing in `dtype`.

    The model must be on the `meta` device, where it is counted without using memory or computing anything.
    """
    if not SEES_OPERATIONS:
        raise NotImplementedError(
            f"torch {torch.__version__} lacks torch.utils._python_dispatch, which counts operations"
        )
    images = torch.empty(_BATCH, *image_shape, device="meta")
    labels = torch.empty(_BATCH, dtype=torch.long, device="meta")
    with _Bound(peak) as bound:
        # As under autocast: every counted operation computes in `dtype`.
        loss = cross_entropy(model.to(dtype)(images.to(dtype)).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
    return float(_BATCH / bound.seconds)


class _Bound(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the least time that each operation takes."""

    def __init__(self, peak: Peak) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._peak = peak
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        normalises = "_norm" in packet.__name__
        if packet in flop_registry or normalises:
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            moved = _size(read) * (2 if normalises else 1) + _size(tree_leaves(out))
            flops = flop_registry[packet](*args, **(kwargs or {}), out_val=out) if packet in flop_registry else 0
            self.seconds += max(flops / self._rate(packet.__name__, read), moved / self._peak.bytes_per_s)
        return out

    def _rate(self, operation: str, read: Sequence[torch.Tensor]) -> float:
        if any(leaf.dtype in (torch.bfloat16, torch.float16) for leaf in read):
            return self._peak.half_flops
        return self._peak.convolution_flops if "convolution" in operation else self._peak.single_flops


def _size(leaves: Sequence[Any]) -> int:
    """Bytes of all tensors among `leaves`."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
