"""A model's gradients, and many tensors as one."""

from __future__ import annotations

from typing import Sequence

import torch
from torch import Tensor, nn


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """All parameters but those that are frozen."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def gradients_of(net: nn.Module) -> list[Tensor]:
    """All gradients, in the parameters' order; zeros for a parameter that took no part."""
    parameters = trainable(net)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All values in one new tensor of shape (total,)."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write the values of `flat`, (total,), back to the tensors that `flat` took them from."""
    for tensor, values in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors])):
        tensor.copy_(values.view(tensor.shape))
