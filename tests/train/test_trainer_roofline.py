"""What a GPU could do at best, counted without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from trainer.roofline import Peak

pytestmark = pytest.mark.torch

ROW = {"event": "train", "samples_per_s": 500.0, "load_us_per_sample": 0.0, "train_us_per_sample": 2.0}


def slow_memory() -> Peak:
    from trainer.roofline import Peak

    return Peak(half_flops=1e30, single_flops=1e30, convolution_flops=1e30, bytes_per_s=1e6)


def slow_maths() -> Peak:
    from trainer.roofline import Peak

    return Peak(half_flops=2e6, single_flops=1e6, convolution_flops=1.5e6, bytes_per_s=1e30)


def layer() -> nn.Module:
    """8 numbers to 4: two products per sample and step, as the gradient of its input is not needed."""
    from torch import nn
    from trainer import roofline

    return roofline.on_meta(nn.Sequential(nn.Flatten(), nn.Linear(8, 4, bias=False)))


@pytest.mark.parametrize(("dtype", "flops"), [("float32", 1e6), ("bfloat16", 2e6)])
def test_arithmetic_bounds_where_memory_is_fast(dtype: str, flops: float) -> None:
    import torch
    from trainer import roofline

    assert roofline.images_per_s(layer(), (2, 2, 2), getattr(torch, dtype), slow_maths()) == pytest.approx(
        flops / (2 * 2 * 8 * 4)
    )


@pytest.mark.parametrize(("dtype", "flops"), [("float32", 1.5e6), ("bfloat16", 2e6)])
def test_convolutions_in_float32_may_use_tf32(dtype: str, flops: float) -> None:
    import torch
    from torch import nn
    from trainer import roofline

    net = roofline.on_meta(nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.Flatten()))  # 8 outputs, of one pixel

    assert roofline.images_per_s(net, (3, 1, 1), getattr(torch, dtype), slow_maths()) == pytest.approx(
        flops / (2 * 2 * 3 * 8)
    )


def test_memory_bounds_where_arithmetic_is_fast() -> None:
    import torch
    from trainer import roofline

    moved = 2 * 4 * (8 + 4 + 8 * 4 / 32)  # both products: input, output, and the weights' share of 32 samples
    assert roofline.images_per_s(layer(), (2, 2, 2), torch.float32, slow_memory()) == pytest.approx(1e6 / moved)


def test_a_normalisation_costs_passes_and_what_is_fused_costs_nothing() -> None:
    import torch
    from torch import nn
    from trainer import roofline

    def net(*more: nn.Module) -> nn.Module:
        return roofline.on_meta(nn.Sequential(nn.Conv2d(3, 8, 1), *more, nn.Flatten(), nn.Linear(8 * 64, 4)))

    plain, fused, normalised = (
        1 / roofline.images_per_s(net(*more), (3, 8, 8), torch.float32, slow_memory())
        for more in ((), (nn.ReLU(),), (nn.BatchNorm2d(8),))
    )

    assert fused == pytest.approx(plain)
    passes = (normalised - plain) / (8 * 64 * 4 / 1e6)
    assert passes == pytest.approx(2 + 1 + 2 * 2 + 1, rel=0.01), "forward: twice in, out; backward: twice both, out"


def test_an_outline_leaves_the_model_alone_and_is_for_known_gpus_only() -> None:
    import torch
    from torch import nn
    from trainer import roofline

    net = nn.Linear(8, 4)

    assert {parameter.device.type for parameter in roofline.on_meta(net).parameters()} == {"meta"}
    assert net.weight.device.type == "cpu"
    assert roofline.outline(net, torch.device("cpu")) is None
    for name, known in (("NVIDIA H200", "H200"), ("NVIDIA A100-PCIE-40GB", "A100"), ("NVIDIA A10", "A10")):
        assert roofline.peak_of(name) == roofline.PEAKS[known]
    for name in ("GeForce 256", "NVIDIA RTX A1000", "NVIDIA A10G"):
        assert roofline.peak_of(name) is None
    card = roofline.peak_of("NVIDIA A100 80GB PCIe")
    assert card is not None
    assert card.bytes_per_s == 1.935e12
    assert roofline.ceiling(nn.Sequential(), (3, 8, 8), torch.float32, "NVIDIA H200") is None, "cannot be counted"


def test_the_summary_compares_ranks_and_runs() -> None:
    """The first row warms up; a rank that works much longer than the median holds the others up."""
    from trainer.report import summary

    start = {"event": "start", "world_size": 3, "hosts": ["a", "b", "c"]}
    rows = [
        {**ROW, "load_us_per_sample": 6.0, "samples_per_s": speed, "own_s_per_step": [1.0, slow, 1.1]}
        for speed, slow in ((1.0, 9.0), (600.0, 1.3), (300.0, 1.1), (450.0, 1.4))
    ]

    speed, slowest = summary([start, *rows], 100.0)
    assert speed == "450 images/s, 75% of the time waiting for data; 150% of the baseline's speed per rank"
    assert slowest == "slowest: rank 1 on b, 1.23 times the median's own work"
    assert summary([start], None) == []
    assert len(summary([start, {**ROW, "own_s_per_step": [1.0, 1.05, 1.0]}], None)) == 1, "within what is usual"


def test_the_speed_per_rank_is_that_of_the_latest_number_of_ranks(tmp_path: Path) -> None:
    """Twice as many ranks are twice as fast, and the last start trains nothing."""
    from trainer.flags import parse
    from trainer.report import read_baseline, summary

    start = {"event": "start", "world_size": 4, "hosts": ["a"] * 4}
    records = [
        {**start, "world_size": 2}, *({**ROW, "samples_per_s": 200.0} for _ in range(9)),
        start, *({**ROW, "samples_per_s": speed} for speed in (1.0, 400.0, 400.0)),
        {**start, "world_size": 1},
    ]  # fmt: skip
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))

    assert summary(records, 100.0)[0].startswith("400 images/s, ")
    assert summary(records, 100.0)[0].endswith("; 100% of the baseline's speed per rank")
    assert read_baseline(parse(["--baseline", str(file)], 1)) == 100.0


def test_a_run_that_was_started_again_on_other_ranks_draws_without_rows_of_theirs(tmp_path: Path) -> None:
    from trainer.flags import parse
    from trainer.report import draw

    config = parse(["--report", str(tmp_path / "report.svg")], 1)
    draw([{"event": "start", "world_size": 4}, {**ROW, "samples": 1, "loss": 1.0, "lr": 0.1}], config)

    assert "<svg" in (tmp_path / "report.svg").read_text()


def test_the_share_of_the_roofline_is_in_the_summary() -> None:
    from trainer.report import summary

    start = {"event": "start", "world_size": 2, "hosts": ["a", "b"]}

    assert summary([start, ROW, ROW], None, 1000.0)[0].endswith("; 25% of the roofline, 1,000 images/s per GPU")
