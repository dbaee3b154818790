"""Batches, loaded ahead: threads fill pinned memory, and a CUDA stream copies it while the last step computes."""

from __future__ import annotations

import collections
import itertools
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterator, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from trainer.errors import TrainingError
from trainer.order import eval_batches, make_order

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.datasets.dataset import Data
    from trainer.sources import Numbers, Source
    from trainer.world import World

AHEAD = 3
"""Batches being loaded while one is trained on."""
LEAST, MOST = 4, 16
"""Images that a thread decodes per task: their order in the batch does not depend on it."""
TASKS = 4
"""Tasks for each thread in the batches that are loaded ahead, if they are not too small: none waits long for others."""

LOST = 8
"""Batches in a row, all of whose samples are damaged, before the run fails: the files are of another kind, or gone."""


@dataclass(frozen=True)
class Batch:
    """One rank's samples of one step, on its device."""

    images: Tensor
    """(n, channels, height, width), uint8 or float32, as in the source; see `Normalise`."""

    labels: Tensor
    """int64, (n,)."""

    start: int
    end: int
    """First and past-the-last sample of this step in the epoch's order, over all ranks."""

    weight: float
    """The weight of this rank's mean loss: the ranks' means are averaged, but their numbers of samples may differ."""

    samples: int
    """Samples of this rank that count: all, or none if it only takes part in the others' collectives."""

    numbers: Numbers
    """Their numbers in the data set."""

    load_s: float
    """How long this rank waited for the samples."""


class _Job(NamedTuple):
    """A batch to load."""

    start: int
    end: int
    numbers: Numbers
    samples: int
    """How many of `numbers` count."""


class _Pending(NamedTuple):
    """A batch that threads are filling."""

    job: _Job
    images: Tensor
    labels: Tensor
    parts: list[tuple[int, Future[list[int]]]]
    """For each part of the batch, its first sample and the result of `Source.fill`."""


class Batches:
    """One rank's batches of the training set, epoch by epoch, and of the test set."""

    def __init__(self, data: Data, config: Config, world: World) -> None:
        self.data, self.config, self.world = data, config, world
        self.order = make_order(config, world, len(data.train))
        self.threads = thread_count(config, world, data.train)
        self._pool = _single_threads(self.threads) if self.threads else None
        self._lost: collections.Counter[Source] = collections.Counter()
        """Wholly damaged batches in a row, by source."""

    def train(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of `epoch` after its first `start` samples."""
        return self._batches(self.data.train, self._training(epoch, start), epoch)

    def test(self) -> Iterator[Batch]:
        """The test samples that this rank counts; the same number of batches on all ranks."""
        return self._batches(self.data.test, self._testing(), None)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _training(self, epoch: int, start: int) -> Iterator[_Job]:
        for begin, end in self.order.spans(start):
            mine = self.order.take(epoch, begin, end)
            company = mine if len(mine) else self.order.take(epoch, begin - self.world.rank, begin + 1)  # rank 0's
            if len(company) == 1 < self.config.batch_size:
                company = company.repeat(2)  # the same mean; BatchNorm takes no single values
            yield _Job(begin, end, company, len(mine))

    def _testing(self) -> Iterator[_Job]:
        config, world, samples = self.config, self.world, len(self.data.test)
        for mine in eval_batches(samples, config.batch_size, rank=world.rank, world_size=world.world_size):
            yield _Job(0, samples, mine if len(mine) else np.zeros(1, np.int64), len(mine))

    def _batches(self, source: Source, jobs: Iterator[_Job], epoch: Optional[int]) -> Iterator[Batch]:
        """`jobs` as batches on the device; the next one is prepared while one is in use."""
        loaded = self._load(source, jobs, epoch)
        try:
            yield from _copied(loaded, self.world) if self.world.device.type == "cuda" else loaded
        finally:
            loaded.close()

    def _load(self, source: Source, jobs: Iterator[_Job], epoch: Optional[int]) -> Generator[Batch, None, None]:
        """`jobs` as batches in memory, in order."""
        pending: collections.deque[_Pending] = collections.deque()
        ahead = AHEAD if self._pool else 0
        begin_s = time.perf_counter()
        try:
            for job in itertools.chain(jobs, itertools.repeat(None)):
                if job is not None:
                    pending.append(self._begin(source, job, epoch))
                elif not pending:
                    return
                if job is None or len(pending) > ahead:
                    done, images, labels = self._end(source, pending.popleft())
                    weight = done.samples * self.world.world_size / (done.end - done.start)
                    load_s = time.perf_counter() - begin_s
                    yield Batch(images, labels, done.start, done.end, weight, done.samples, done.numbers, load_s)
                    begin_s = time.perf_counter()
        finally:
            for batch in pending:
                for _, part in batch.parts:
                    part.cancel()

    def _begin(self, source: Source, job: _Job, epoch: Optional[int]) -> _Pending:
        """Start filling a batch, by threads if there are any."""
        count, pin = len(job.numbers), self.world.device.type == "cuda"
        order = torch.channels_last if source.shape[0] == 3 else torch.contiguous_format
        images = torch.empty((count, *source.shape), dtype=source.dtype, pin_memory=pin, memory_format=order)
        labels = torch.empty(count, dtype=torch.int64, pin_memory=pin)
        grain = count
        if self.threads and source.decodes:
            grain = min(MOST, max(LEAST, count * AHEAD // (TASKS * self.threads)))
        parts = []
        for first in range(0, count, grain):
            span = slice(first, first + grain)
            parts.append((first, self._run(source.fill, job.numbers[span], epoch, images[span], labels[span])))
        return _Pending(job, images, labels, parts)

    def _run(self, fill: Callable[..., list[int]], *args: Any) -> Future[list[int]]:
        if self._pool:
            return self._pool.submit(fill, *args)
        done: Future[list[int]] = Future()
        done.set_result(fill(*args))
        return done

    def _end(self, source: Source, pending: _Pending) -> tuple[_Job, Tensor, Tensor]:
        """Wait for a batch, and remove its damaged samples; if none is left, none of it counts."""
        job, images, labels, parts = pending
        bad = [first + place for first, part in parts for place in part.result()]
        if not bad:
            self._lost[source] = 0
            return job, images, labels
        good = np.setdiff1d(np.arange(len(labels)), bad)
        self._lost[source] = 0 if len(good) else self._lost[source] + (job.samples > 0)
        if self._lost[source] == LOST:
            raise TrainingError(
                f"all {len(bad)} samples of a batch are damaged, the first of them {source.name(job.numbers[0])}"
            )
        if not len(good):  # the other ranks wait for this one in the step's collectives
            return job._replace(samples=0), images.zero_(), labels
        kept = torch.from_numpy(good)
        counted = min(job.samples, len(good))
        return job._replace(numbers=job.numbers[good], samples=counted), images[kept], labels[kept]


def thread_count(config: Config, world: World, source: Source) -> int:
    """Threads that load: `--workers`, or this rank's share of the cores to decode images, else up to 4 (GPU) or 0.

    The parent has the cores of all ranks, also if each rank is bound to its own.
    """
    if config.workers is not None:
        return config.workers
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own, parents = (len(os.sched_getaffinity(process)) for process in (0, os.getppid()))
    share = max(1, min(own, parents // local_ranks))
    if source.decodes:
        return share
    return min(4, share) if world.device.type == "cuda" else 0


def _single_threads(count: int) -> ThreadPoolExecutor:
    """A pool whose threads run each operation on one thread: the batch is already divided among them."""
    all_there = threading.Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # applies the process's count to this thread, which would otherwise happen later
        torch.set_num_threads(1)
        all_there.wait()

    number = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, thread_name_prefix="load", initializer=begin)
    for _ in range(count):
        pool.submit(int)
    all_there.wait()
    torch.set_num_threads(number)  # MKL's count is per process: restore it for the training
    return pool


def _copied(loaded: Iterator[Batch], world: World) -> Iterator[Batch]:
    """`loaded` on the GPU: a batch is copied, on a separate stream, while the previous one is in use."""
    stream: Any = torch.cuda.Stream(world.device)  # type: ignore[no-untyped-call]
    waiting: Optional[tuple[Batch, torch.cuda.Event]] = None
    for batch in itertools.chain(loaded, [None]):
        ready, waiting = waiting, None
        if batch is not None:
            with torch.cuda.stream(stream):
                images = batch.images.to(world.device, non_blocking=True)
                labels = batch.labels.to(world.device, non_blocking=True)
                waiting = replace(batch, images=images, labels=labels), stream.record_event()
        if ready is not None:
            on_device, copied = ready
            training = torch.cuda.current_stream(world.device)
            training.wait_event(copied)
            on_device.images.record_stream(training)  # else the copying stream could reuse this memory while it is read
            on_device.labels.record_stream(training)
            yield on_device


class Normalise:
    """Images with mean 0 and deviation 1, on the device; data without `std` is only converted to `dtype`."""

    def __init__(
        self, data: Data, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format
    ) -> None:
        self.dtype, self.memory_format = dtype, memory_format
        shape = (1, -1, 1, 1)
        self.scale = torch.tensor([1 / one for one in data.std]).view(shape).to(device, dtype) if data.std else None
        self.shift = torch.tensor([-m / s for m, s in zip(data.mean, data.std)]).view(shape).to(device, dtype)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (n, channels, height, width) of any type; return them as `dtype`."""
        images = images.to(dtype=self.dtype, memory_format=self.memory_format)
        return images if self.scale is None else torch.addcmul(self.shift, images, self.scale)
