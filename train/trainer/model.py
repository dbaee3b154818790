"""The models: a small one, torchvision's by name, and the user's own functions."""

from __future__ import annotations

import ctypes
import difflib
import importlib
import importlib.util
import os
import pickle
import sys
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.errors import InputError
from trainer.torch_private import has_fast_bfloat16

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.config import Config
    from trainer.sources import Shape


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's malloc.h


class SmallNet(nn.Module):
    """Three convolutions, about 70,000 parameters: images (n, channels, height, width) to logits (n, classes).

    It normalises by groups, not by batches: a sample's result does not depend on the rest of its batch, so training
    does not depend on the number of ranks.
    """

    def __init__(self, image_shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        # The same maxima by another kernel: on a GPU, the backward of the adaptive one is not deterministic.
        pool = nn.MaxPool2d((height // 4, width // 4)) if _divides(image_shape) else nn.AdaptiveMaxPool2d(4)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(),
            pool,
            nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(),
        )  # fmt: skip
        self.classify = nn.Linear(64 * 4 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, channels, height, width)."""
        logits: Tensor = self.classify(self.features(images).flatten(1))
        return logits


def _divides(image_shape: Shape) -> bool:
    """Whether 4x4 windows of equal size cover an image."""
    return image_shape[1] % 4 == image_shape[2] % 4 == 0


def list_models() -> list[str]:
    """The names that `--model` takes."""
    return ["small", *_torchvision().list_models(module=_torchvision())]


def build_model(config: Config, classes: int, device: torch.device) -> nn.Module:
    """The model that `config` names, on `device`, with weights from the seed (the same on every rank) or `--weights`.

    Raises `InputError` for an unknown name, weights that do not fit, or images that the model cannot take.
    """
    torch.manual_seed(config.seed)
    channels, height, width = config.image_shape
    if config.model == "small":
        if config.deterministic and device.type == "cuda" and not _divides(config.image_shape):
            raise InputError("--deterministic on a GPU: the small model takes images whose sides are multiples of 4")
        model: nn.Module = SmallNet(config.image_shape, classes)
    elif ":" in config.model:
        model = _users_model(config.model, classes)
    else:
        model = _torchvision_model(config.model, classes, height)
    if config.weights:
        _load_weights(model, config.weights)
    model.to(device)
    if config.model != "small":
        try:
            with torch.no_grad():
                logits = model.eval()(torch.zeros(1, channels, height, width, device=device))
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            shape = "x".join(map(str, config.image_shape))
            advice = "try --image-shape 3x224x224"
            raise InputError(
                f"{config.model} cannot take images of {shape} ({_first_line(error)}); {advice}"
            ) from error
        if tuple(logits.shape) != (1, classes):
            raise InputError(f"{config.model} gives {tuple(logits.shape)} for one image; (1, {classes}) is needed")
    return model.train()


def _torchvision_model(name: str, classes: int, side: int) -> nn.Module:
    known = list_models()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        advice = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(f"unknown model {name!r}: {advice}--list-models prints all {len(known)}")
    model: nn.Module = _torchvision().get_model(name, num_classes=classes, **_options(name, side))
    return model


def _users_model(name: str, classes: int) -> nn.Module:
    """The model that `module:function` returns for `num_classes`; the module may be in the working directory."""
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)(num_classes=classes)
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(
            f"--model {name}: {_first_line(error)}; {function}(num_classes) must return a torch.nn.Module"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    if not isinstance(made, nn.Module):
        raise InputError(f"--model {name}: {function} returned {type(made).__name__}, not a torch.nn.Module")
    return made


def _load_weights(model: nn.Module, path: Path) -> None:
    """Load weights from a file: a state dict, or a checkpoint of train.py."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state.get("model", state))
    except OSError as error:
        raise InputError(f"--weights {path}: {error.strerror}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError, AttributeError, TypeError) as error:
        lines = str(error).splitlines()
        detail = (
            lines[1].strip() if len(lines) > 1 and lines[0].startswith("Error(s) in loading") else _first_line(error)
        )
        raise InputError(f"--weights {path}: not weights of this model: {detail}") from error


def fingerprint(model: nn.Module) -> int:
    """A hash of the bits of all parameters and buffers, equal on ranks with the same weights."""
    value = 0
    for tensor in model.state_dict().values():
        value = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, value)
    return value


def compute_type(config: Config, device: torch.device) -> torch.dtype:
    """The type that `--precision` selects on this device."""
    named = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if config.precision != "auto":
        return named[config.precision]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    return torch.bfloat16 if has_fast_bfloat16() and config.model != "small" else torch.float32


def memory_format(config: Config) -> torch.memory_format:
    """The memory format that `--channels-last` selects; torch's fully_shard takes no channels-last weights."""
    fits = config.image_shape[0] == 3 and config.sync != "fsdp"
    wanted = config.channels_last == "on" or (config.channels_last == "auto" and fits)
    return torch.channels_last if wanted else torch.contiguous_format


def keep_freed_memory(device: torch.device) -> None:
    """On a CPU, make the C library keep freed memory for the next step; the process then stays at its peak size.

    Otherwise glibc returns each large tensor to the kernel, and every step takes a page fault per 4 KiB of its
    activations (mallopt(3)): 70,000 for ResNet-18 on 16 images of 224x224, 6 % of the step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if device.type == "cpu" and mallopt:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def _options(name: str, side: int) -> dict[str, Any]:
    """Options that some models need: no auxiliary classifier, which only training would use, and the image size."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {"image_size": side} if name.startswith("vit_") else {}


def _torchvision() -> Any:
    """`torchvision.models`, imported only when a run needs it, since that takes a second and a half."""
    if importlib.util.find_spec("torchvision") is None:
        raise InputError("models other than small need torchvision: pip install torchvision")
    from torchvision import models

    return models


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
