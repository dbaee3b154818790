"""The optimizer, its learning rate, and the moving average of the weights."""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainer.gradients import trainable

if TYPE_CHECKING:
    from trainer.checkpoint import Progress
    from trainer.config import Config

STEP_SCHEDULE = ((0.9, 0.001), (2 / 3, 0.01), (1 / 3, 0.1))
"""Share of the run, and the part of the peak rate from there on."""


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW or SGD over all parameters; biases and norms do not decay. Fused: a step is one pass over memory."""
    parameters = trainable(model)
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=True)
    kernel = "foreach" if config.sync == "fsdp" else "fused"  # torch cannot shard fused SGD
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, **{kernel: True}
    )


def keep_options(optimizer: torch.optim.Optimizer) -> None:
    """Let a checkpoint restore the state alone: its options, such as the weight decay, would replace this run's.

    The state gets the layout of its parameters in memory, since fused kernels go through both side by side.
    """
    own = [{key: value for key, value in one.items() if key not in ("params", "lr")} for one in optimizer.param_groups]

    def put_back(loaded: torch.optim.Optimizer) -> None:
        for group, options in zip(loaded.param_groups, own):
            group.update(options)
        for parameter, state in loaded.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    same = value.stride() == parameter.stride()
                    state[name] = value if same else torch.empty_like(parameter, dtype=value.dtype).copy_(value)

    optimizer.register_load_state_dict_post_hook(put_back)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, config: Config, done: Progress, epoch_samples: int, ranks: int
) -> float:
    """Set the learning rate of the next step, and return it."""
    share = (done.epoch + done.epoch_samples / epoch_samples) / config.epochs
    peak = config.lr * (config.batch_size * ranks / config.scale_lr if config.scale_lr else 1)
    lr = learning_rate(peak, share, schedule=config.schedule, warmup=config.warmup)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def learning_rate(peak: float, share: float, *, schedule: str = "cosine", warmup: float = 0.1) -> float:
    """The rate when `share` of the run is done: a linear rise over the share `warmup`, then by `schedule`.

    It depends on nothing else, so it is the same after a restart on another number of ranks.
    Source of the scaling rule and the warm-up: Goyal et al., "Accurate, Large Minibatch SGD".
    """
    if share < warmup:
        return peak * (share / warmup + 0.01)
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))
    if schedule == "step":
        return peak * next((part for begin, part in STEP_SCHEDULE if share >= begin), 1.0)
    return peak


class Update:
    """Applies gradients to the weights: the optimizer, the scaling of fp16's losses, and the average of the weights."""

    def __init__(
        self, config: Config, net: nn.Module, trained: nn.Module, *, scales: bool, device: torch.device
    ) -> None:
        """`trained` is the module whose parameters the optimizer updates; `scales`: scale losses, as fp16 needs."""
        self._net, self._clip_norm = net, config.clip_norm
        self.optimizer = make_optimizer(config, trained)
        keep_options(self.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)
        self.average = Average(net, config.ema_decay) if config.ema_decay else None

    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds of it, by name."""
        parts = {"optimizer": self.optimizer, "scaler": self.scaler, "average": self.average}
        return {name: part for name, part in parts.items() if part}

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, a scalar."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def clip(self) -> None:
        """Limit the norm of the gradients to `clip_norm`, if that is set."""
        if self._clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self._net.parameters(), self._clip_norm)

    def step(self) -> None:
        """Apply the gradients to the weights; with fp16, skip the step if they overflowed."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def averaged(self) -> ContextManager[None]:
        """A context in which the model has the averaged weights, if there is an average."""
        return self.average.in_place() if self.average else nullcontext()


class Average:
    """An exponential moving average of a model's parameters; `decay` 0.999 looks back about a thousand steps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._blend: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # one kernel for all of them
        self.parameters = {name: one.detach() for name, one in model.named_parameters()}
        self._reshard: Callable[[], None] = getattr(model, "reshard", lambda: None)
        self.shadow = {name: one.clone() for name, one in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Add one step to the average."""
        self._blend(_local(self.shadow), _local(self.parameters), None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()
            self._reshard()  # with fully_shard, the model's own parameters would stay gathered as they were

    @torch.no_grad()
    def _swap(self) -> None:
        for shadow, parameter in zip(_local(self.shadow), _local(self.parameters)):
            kept = parameter.clone()
            parameter.copy_(shadow)
            shadow.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """The average, for a checkpoint."""
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the average from a checkpoint; if that has none, it begins with the loaded weights."""
        for name, shadow in self.shadow.items():
            shadow.copy_(state.get(name, self.parameters[name]))


def _local(tensors: dict[str, Tensor]) -> list[Tensor]:
    """The values that this rank holds: all of them, or its shards."""
    return [one.to_local() if hasattr(one, "to_local") else one for one in tensors.values()]
