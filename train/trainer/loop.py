"""What the training loop asks for: the model's score, and how long a rank worked for itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from trainer.loader import Batches
    from trainer.world import World


class Score(NamedTuple):
    """How the model does on the test set, over all ranks."""

    correct: int
    total: int
    loss: float
    """Mean per sample."""

    correct5: int
    """Samples whose class is among the five likeliest."""

    @property
    def accuracy(self) -> float:
        """Between 0 and 1."""
        return self.correct / self.total

    @property
    def accuracy5(self) -> float:
        """Between 0 and 1."""
        return self.correct5 / self.total


class Interrupted(Exception):  # noqa: N818  # not an error
    """The ranks agreed to stop in the middle of an evaluation."""


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor], net: nn.Module, batches: Batches, world: World, stopping: Callable[[], bool]
) -> Score:
    """Score `forward`, which calls `net` without its wrapper: ranks may hold unequal shares. Each test sample is counted once.

    Raises `Interrupted` where the ranks agree that they are `stopping`.
    """
    for buffer in net.buffers():  # running means differ by rank; rank 0's are what a checkpoint holds
        dist.broadcast(buffer, src=0)
    correct = torch.zeros((), dtype=torch.float64, device=world.device)
    correct5, loss, total = torch.zeros_like(correct), torch.zeros_like(correct), 0
    net.eval()
    for batch in batches.test():
        logits, labels = forward(batch.images)[: batch.samples].float(), batch.labels[: batch.samples]
        best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        correct += best[:, 0].sum()
        correct5 += best.sum()
        loss += cross_entropy(logits, labels, reduction="sum")
        total += batch.samples
        if stopping():
            net.train()
            raise Interrupted
    net.train()
    sums = world.sum(correct.item(), loss.item(), correct5.item(), total)
    return Score(round(sums[0]), round(sums[3]), sums[1] / sums[3], round(sums[2]))


class OwnTime:
    """How long this rank worked for itself, without waiting for another: the slowest rank is the one with the most of it.

    On a GPU two events in its stream measure it, which nothing waits for until the total is asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self._begin_s, self._total_s = 0.0, 0.0
        self._events: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """From here."""
        if self.gpu:
            event: Any = torch.cuda.Event
            self._events.append((event(enable_timing=True), event(enable_timing=True)))
            self._events[-1][0].record()
        self._begin_s = time.perf_counter()

    def end(self) -> None:
        """To here."""
        if self.gpu:
            self._events[-1][1].record()
        else:
            self._total_s += time.perf_counter() - self._begin_s

    def take_s(self) -> float:
        """Seconds since the last call; the GPU must have been waited for."""
        total_s = self._total_s + sum(float(begin.elapsed_time(end)) for begin, end in self._events) / 1000
        self._total_s, self._events = 0.0, []
        return total_s
