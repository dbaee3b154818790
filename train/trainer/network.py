"""The model with all that turns images of the loader into logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

import torch
from torch import Tensor, nn

from trainer import model, roofline
from trainer.loader import Normalise

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.datasets import Data


class Network:
    """A model on `device`, the type that it computes in, and the normalisation of its images."""

    def __init__(self, net: nn.Module, data: Data, config: Config, device: torch.device) -> None:
        """`net` is on `device` and not sharded yet."""
        self.net = net
        self.dtype = model.compute_type(config, device)
        self.forward: Callable[[Tensor], Tensor] = net
        """What training calls: `net`, or the wrapper of the ranks' synchronisation or of torch.compile."""

        self._device, self._image_shape = device, config.image_shape
        images = torch.float32 if self.dtype == torch.float16 else self.dtype
        self._normalise = Normalise(data, device, images, model.memory_format(config))
        self._outline = roofline.outline(net, device)

    def logits(self, images: Tensor) -> Tensor:
        """Logits for training, float32 (n, classes), of images (n, channels, height, width) from the loader."""
        return self._logits(self.forward, images)

    def own_logits(self, images: Tensor) -> Tensor:
        """The same from `net` itself, without its wrapper, where ranks may hold unequal shares."""
        return self._logits(self.net, images)

    def _logits(self, module: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        with torch.autocast(self._device.type, self.dtype, enabled=self.dtype != torch.float32):
            return module(self._normalise(images)).float()

    def ceiling(self) -> Optional[float]:
        """Images per second at the GPU's roofline; None without a known GPU, or if the model cannot be counted."""
        if self._outline is None:
            return None
        name = torch.cuda.get_device_name(self._device)
        return roofline.ceiling(self._outline, self._image_shape, self.dtype, name)
