"""A copy of the training's state in memory, and its broadcast from rank 0 to all ranks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainer.torch_private import copy_each

if TYPE_CHECKING:
    from trainer.world import World


class Snapshot:
    """Copies a state into buffers that it keeps: from the second copy on, without page faults."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    @torch.no_grad()
    def take(self, state: dict[str, Any], changing: Iterable[Tensor] = ()) -> tuple[dict[str, Any], Callable[[], None]]:
        """A copy of `state`, and a function that completes it, to be called once before it is read.

        The copy is valid until the next call. On a CPU, only `changing`, which the next forward pass changes, is copied
        here, and the rest by the function: it may run on another thread during the next forward and backward pass, and
        must finish before the optimizer's step. Source: Mohan et al., "CheckFreq: Frequent, Fine-Grained DNN
        Checkpointing". On a GPU, the copies precede the next step in its stream, and the function waits for them.
        """
        tensors = _tensors(state)
        copies = {path: self._buffer(path, tensor) for path, tensor in tensors.items()}
        whole = _replaced(state, copies)
        assert isinstance(whole, dict)
        if any(tensor.is_cuda for tensor in tensors.values()):
            copy_each(list(copies.values()), list(tensors.values()), non_blocking=True)
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            return whole, event.synchronize
        now = {tensor.data_ptr() for tensor in changing}
        pairs = [(copies[path], tensor) for path, tensor in tensors.items()]
        _copy([pair for pair in pairs if pair[1].data_ptr() in now])
        return whole, lambda: _copy([pair for pair in pairs if pair[1].data_ptr() not in now])

    def _buffer(self, path: tuple[Any, ...], tensor: Tensor) -> Tensor:
        kept = self._buffers.get(path)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[path] = kept
        return kept


def broadcast_state(state: Optional[dict[str, Any]], world: World) -> dict[str, Any]:
    """Rank 0's `state` on every rank, its structure first, then each tensor: one pickle would need twice the memory."""
    tensors = _tensors(state or {})
    shapes = [(path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors.items()]
    bare, shapes = world.from_rank_0((_replaced(state or {}, dict.fromkeys(tensors)), shapes))
    if world.rank != 0:
        tensors = {path: torch.empty(shape, dtype=dtype) for path, shape, dtype in shapes}
    for tensor in tensors.values():
        dist.broadcast(tensor.contiguous() if world.rank == 0 else tensor, src=0)
    whole = _replaced(bare, tensors)
    assert isinstance(whole, dict)
    return whole


def random_state(world: World) -> dict[str, Any]:
    """The state of this rank's random number generators: torch, Python and numpy."""
    version, numbers, gauss = random.getstate()
    _, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    state: dict[str, Any] = {"cpu": torch.get_rng_state(), "python": [version, list(numbers), gauss]}
    state["numpy"] = [torch.from_numpy(np.asarray(keys, np.int64)), [int(rest[0]), int(rest[1]), float(rest[2])]]
    if world.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(world.device)
    return state


def set_random_state(state: dict[str, Any], world: World) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    keys, rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    if world.device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], world.device)


def _tensors(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Tensor]:
    """All tensors in nested dicts and lists, by their path."""
    if isinstance(value, Tensor):
        return {path: value.detach()}
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {place: tensor for key, one in inside for place, tensor in _tensors(one, (*path, key)).items()}


def _replaced(value: Any, by: Any, path: tuple[Any, ...] = ()) -> Any:
    """`value` with the values of `by` at their paths; containers are new."""
    if path in by:
        return by[path]
    if isinstance(value, dict):
        return {key: _replaced(one, by, (*path, key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(one, by, (*path, key)) for key, one in enumerate(value)]
    return value


@torch.no_grad()
def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair to the first."""
    if pairs:
        copy_each([pair[0] for pair in pairs], [pair[1] for pair in pairs])
