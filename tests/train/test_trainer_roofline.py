"""What a GPU could do at best, counted without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from trainer import roofline
from trainer.report import summary

SLOW_MEMORY = roofline.Peak(half_flops=1e30, single_flops=1e30, bytes_per_s=1e6)
SLOW_MATHS = roofline.Peak(half_flops=2e6, single_flops=1e6, bytes_per_s=1e30)
ROW = {"event": "train", "samples_per_s": 500.0, "load_us_per_sample": 0.0, "train_us_per_sample": 2.0}


def layer() -> nn.Module:
    """8 numbers to 4: two products a sample in a step, as nobody asks for the gradient of its input."""
    return roofline.on_meta(nn.Sequential(nn.Flatten(), nn.Linear(8, 4, bias=False)))


@pytest.mark.parametrize(("dtype", "flops"), [(torch.float32, 1e6), (torch.bfloat16, 2e6)])
def test_arithmetic_bounds_where_memory_is_fast(dtype: torch.dtype, flops: float) -> None:
    assert roofline.images_per_s(layer(), (2, 2, 2), dtype, SLOW_MATHS) == pytest.approx(flops / (2 * 2 * 8 * 4))


def test_memory_bounds_where_arithmetic_is_fast() -> None:
    moved = 2 * 4 * (8 + 4 + 8 * 4 / 32)  # both products: input, output, and the weights' share of 32 samples
    assert roofline.images_per_s(layer(), (2, 2, 2), torch.float32, SLOW_MEMORY) == pytest.approx(1e6 / moved)


def test_a_normalisation_costs_passes_and_what_is_fused_costs_nothing() -> None:
    def net(*more: nn.Module) -> nn.Module:
        return roofline.on_meta(nn.Sequential(nn.Conv2d(3, 8, 1), *more, nn.Flatten(), nn.Linear(8 * 64, 4)))

    plain, fused, normalised = (
        1 / roofline.images_per_s(net(*more), (3, 8, 8), torch.float32, SLOW_MEMORY)
        for more in ((), (nn.ReLU(),), (nn.BatchNorm2d(8),))
    )

    assert fused == pytest.approx(plain)
    passes = (normalised - plain) / (8 * 64 * 4 / 1e6)
    assert passes == pytest.approx(2 + 1 + 2 * 2 + 1, rel=0.01), "forward: twice in, out; backward: twice both, out"


def test_an_outline_leaves_the_model_alone_and_is_for_known_gpus_only() -> None:
    net = nn.Linear(8, 4)

    assert {parameter.device.type for parameter in roofline.on_meta(net).parameters()} == {"meta"}
    assert net.weight.device.type == "cpu"
    assert roofline.outline(net, torch.device("cpu")) is None
    assert roofline.peak_of("NVIDIA H200") == roofline.PEAKS["H200"]
    assert roofline.peak_of("GeForce 256") is None
    assert roofline.ceiling(nn.Sequential(), (3, 8, 8), torch.float32, "NVIDIA H200") is None, "cannot be counted"


def test_the_share_is_in_the_summary() -> None:
    start = {"event": "start", "world_size": 2, "hosts": ["a", "b"]}

    assert summary([start, ROW, ROW], None, 1000.0)[0].endswith("; 25% of the roofline, 1,000 images/s per GPU")
