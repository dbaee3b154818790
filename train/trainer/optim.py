"""Steps: the optimizer, its learning rate, and the moving average of the weights."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

if TYPE_CHECKING:
    from trainer.checkpoint import Progress
    from trainer.config import Config

STEP_SCHEDULE = ((0.9, 0.001), (2 / 3, 0.01), (1 / 3, 0.1))
"""Share of the run from which the rate is that part of its peak."""


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW or SGD over all parameters; biases and norms do not decay. Fused: one pass over memory for a step."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=True)
    kernel = "foreach" if config.sync == "fsdp" else "fused"  # torch cannot shard the fused one
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, **{kernel: True})


def set_learning_rate(optimizer: torch.optim.Optimizer, config: Config, done: Progress, epoch_samples: int, ranks: int) -> float:
    """Give the coming step its learning rate, which is returned."""
    share = (done.epoch + done.epoch_samples / epoch_samples) / config.epochs
    peak = config.lr * (config.batch_size * ranks / config.scale_lr if config.scale_lr else 1)
    lr = learning_rate(peak, share, schedule=config.schedule, warmup=config.warmup)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def learning_rate(peak: float, share: float, *, schedule: str = "cosine", warmup: float = 0.1) -> float:
    """The rate when `share` of the run is done: a linear rise over the share `warmup`, then by `schedule`.

    It depends on nothing else, so it survives a restart on another number of ranks.
    Source of rule and warm-up: Goyal et al., "Accurate, Large Minibatch SGD".
    """
    if share < warmup:
        return peak * (share / warmup + 0.01)
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))
    if schedule == "step":
        return peak * next((part for begin, part in STEP_SCHEDULE if share >= begin), 1.0)
    return peak


class Average:
    """An exponential moving average of a model's parameters; `decay` 0.999 looks back about a thousand steps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._blend: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # one kernel for all of them
        self.parameters = {name: one.detach() for name, one in model.named_parameters()}
        self.shadow = {name: one.clone() for name, one in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Count one step."""
        self._blend(_local(self.shadow), _local(self.parameters), None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for shadow, parameter in zip(_local(self.shadow), _local(self.parameters)):
            kept = parameter.clone()
            parameter.copy_(shadow)
            shadow.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        for name, shadow in self.shadow.items():
            shadow.copy_(state[name])


def _local(tensors: dict[str, Tensor]) -> list[Tensor]:
    """The values that this rank holds: all of them, or its shards."""
    return [one.to_local() if hasattr(one, "to_local") else one for one in tensors.values()]
