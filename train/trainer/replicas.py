"""A model on many devices of one process."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


class Replicas(nn.Module):
    """`net` on many devices at once; the logits return to the images' device."""

    def __init__(self, net: nn.Module, devices: list[torch.device]) -> None:
        super().__init__()
        self.net, self.devices = net, devices
        self._modules_of = (net, *(copy.deepcopy(net).to("meta") for _ in devices[1:]))
        """One for each device, as a call puts its tensors into its module; no parts of this one, as it is a tuple."""

        self.threads = ThreadPoolExecutor(len(devices), thread_name_prefix="replica")

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, channels, height, width)."""
        shares = images.chunk(len(self.devices))
        kind = images.device.type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)  # both settings are per thread
        running = [self.threads.submit(self._run, number, share, *autocast) for number, share in enumerate(shares)]
        return torch.cat([one.result().to(images.device) for one in running])

    def _run(self, number: int, share: Tensor, autocast: bool, dtype: torch.dtype) -> Tensor:
        device, net = self.devices[number], self._modules_of[number]
        for own, original in zip(net.modules(), self.net.modules()):
            own.training = original.training
        state: dict[str, Tensor] = {name: value.to(device) for name, value in self.net.named_parameters()}
        if number:  # the first replica's running means are the model's
            state |= {name: value.to(device, copy=True) for name, value in self.net.named_buffers()}
        with torch.autocast(device.type, dtype, enabled=autocast):
            logits: Tensor = torch.func.functional_call(net, state, (share.to(device),))
        return logits
