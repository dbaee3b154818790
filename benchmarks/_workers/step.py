"""A bare training loop of ResNet-18 on one batch in memory, for benchmarks/train_step.py.

`recipe` is torchvision's references/classification/train.py: SGD with momentum, float32, plain DDP, its metrics after
each step. `bare` is our trainer's step alone: channels_last, DDP with bucket views, bf16 if requested. `ceiling` does
not train: it is the speed if all arithmetic ran like a product of large float32 matrices.
"""

# distlaunch: preload torch._dynamo

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model


def ceiling(model: str, side: int, products: int) -> float:
    """Images per second of one rank if all its arithmetic ran as fast as 2048 x 2048 matrix products, the median."""
    with FlopCounterMode(display=False) as counter:
        get_model(model, num_classes=10)(torch.randn(2, 3, side, side)).sum().backward()
    left, right, times = torch.randn(2048, 2048), torch.randn(2048, 2048), []
    for _ in range(products):
        begin_s = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - begin_s)
    return float(2 * 2048**3 / statistics.median(times) / (counter.get_total_flops() / 2))


def main(kind: str, model: str, precision: str, sizes: list[int]) -> None:
    """Train; rank 0 prints images per second, the median of the steps, and the losses."""
    batch, side, steps = sizes
    dist.init_process_group("gloo")
    if kind == "ceiling":
        both = torch.tensor(ceiling(model, side, 2 * steps))
        dist.all_reduce(both)
        if dist.get_rank() == 0:
            print(f"images/s {float(both):.3f}")
        dist.destroy_process_group()
        return
    torch.manual_seed(0)
    fast, memory_format = kind == "bare", torch.channels_last if kind == "bare" else torch.contiguous_format
    net = DistributedDataParallel(
        get_model(model, num_classes=10).to(memory_format=memory_format),
        gradient_as_bucket_view=fast,
        static_graph=fast,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=fast or None)
    images = torch.randn(batch, 3, side, side).to(memory_format=memory_format)
    labels, criterion = torch.arange(batch) % 10, nn.CrossEntropyLoss()
    times, losses = [], []
    for _ in range(steps):
        begin_s = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=fast and precision == "bf16"):
            loss = criterion(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not fast:  # its MetricLogger: loss, top-1 and top-5 after each step
            losses.append(loss.item())
        else:
            losses.append(loss.detach())
        times.append(time.perf_counter() - begin_s)
    if dist.get_rank() == 0:
        speed = batch * dist.get_world_size() / sorted(times[1:])[(steps - 1) // 2]
        print(f"images/s {speed:.3f} loss {float(losses[0]):.4f} {float(losses[-1]):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], list(map(int, sys.argv[4:])))
