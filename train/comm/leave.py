"""Leaving the process group in every version of torch."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

_HANDOVER_S = 0.1


def leave() -> None:
    """As `destroy_process_group`, which before torch 2.8 hangs at times.

    There, a group's destructor holds the GIL while it joins gloo's threads. One of them may wait for the GIL, to free
    the tensor of the last collective. It gets it here first. Source: pull request 154976 of pytorch/pytorch.
    """
    if torch.__version__ < (2, 8):  # type: ignore[operator]  # TorchVersion compares with tuples
        time.sleep(_HANDOVER_S)
    dist.destroy_process_group()
