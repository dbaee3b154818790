"""Parts of the training loop: the model's score, and the time a rank spends on its own work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trainer.errors import TrainingError

if TYPE_CHECKING:
    from trainer.loader import Batches
    from trainer.world import World


class Score(NamedTuple):
    """The model's result on the test set, over all ranks."""

    correct: int
    total: int
    loss: float
    """Mean per sample."""

    correct5: int
    """Samples whose class is among the five most likely."""

    @property
    def accuracy(self) -> float:
        """Between 0 and 1."""
        return self.correct / self.total

    @property
    def accuracy5(self) -> float:
        """Between 0 and 1."""
        return self.correct5 / self.total


class Interrupted(Exception):  # noqa: N818  # not an error
    """The ranks agreed to stop in the middle of an evaluation, or before a model of that `accuracy` could be saved."""

    def __init__(self, accuracy: Optional[float] = None) -> None:
        super().__init__()
        self.accuracy = accuracy


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor], net: nn.Module, batches: Batches, world: World, stopping: Callable[[], bool]
) -> Score:
    """Score `forward` on the test set, over all ranks; each sample is counted once.

    `forward` must call `net` without its wrapper, because ranks may hold unequal shares. Raises `Interrupted` if the
    ranks agree that they are `stopping`, `TrainingError` if no sample can be used.
    """
    for buffer in net.buffers():  # running means differ by rank; a checkpoint holds rank 0's
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
    if not sums[3]:
        raise TrainingError("all test samples are damaged")
    return Score(round(sums[0]), round(sums[3]), sums[1] / sums[3], round(sums[2]))


class OwnTime:
    """The time this rank spends on its own work, without waiting for others; the slowest rank has the most.

    On a GPU, two events in its stream measure it; nothing waits for them until the total is read.
    """

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self._begin_s, self._total_s = 0.0, 0.0
        self._events: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        """Start measuring."""
        if self.gpu:
            event: Any = torch.cuda.Event
            self._events.append((event(enable_timing=True), event(enable_timing=True)))
            self._events[-1][0].record()
        self._begin_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Stop measuring."""
        if self.gpu:
            self._events[-1][1].record()
        else:
            self._total_s += time.perf_counter() - self._begin_s

    def take_s(self) -> float:
        """Seconds measured since the last call; the GPU must have been synchronized."""
        total_s = self._total_s + sum(float(begin.elapsed_time(end)) for begin, end in self._events) / 1000
        self._total_s, self._events = 0.0, []
        return total_s
