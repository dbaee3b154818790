"""What `loader.py` compares the trainer's reader with: each gives batches of images, pixels from 0 to 255."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH, SIDE = 64, 224
CORES = len(os.sched_getaffinity(0))
_AHEAD = 4
"""Batches that a pool of threads works on at a time."""


def webdataset_peer(shards: list[str], *, uint8: bool) -> Iterator[Any]:
    """WebDataset in a DataLoader with a process per core."""
    import torch
    import webdataset
    from torchvision import transforms
    from torchvision.io import decode_jpeg
    from torchvision.transforms import v2

    if uint8:
        augment: Any = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])
        decode = (
            lambda sample: (
                augment(decode_jpeg(torch.frombuffer(bytearray(sample[0]), dtype=torch.uint8))),
                int(sample[1]),
            ),
        )
        steps = [webdataset.to_tuple("jpg", "cls"), webdataset.map(*decode)]
    else:
        floats = transforms.Compose(
            [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        )
        steps = [webdataset.decode("pil"), webdataset.to_tuple("jpg", "cls"), webdataset.map_tuple(floats, int)]
    data = webdataset.DataPipeline(
        webdataset.ResampledShards(shards),
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(100),
        *steps,
        webdataset.batched(BATCH, partial=False),
    )
    for images, _ in webdataset.WebLoader(data, batch_size=None, num_workers=CORES):
        yield images if uint8 else images * 255


def spdl(shards: list[str]) -> Iterator[Any]:
    """SPDL's pipeline with a thread per core: WebDataset reads the tars, torchvision decodes."""
    import torch

    pipeline: Any = importlib.import_module("spdl.pipeline")
    samples, decode = _in_threads(shards)
    builder = pipeline.PipelineBuilder().add_source(samples).pipe(decode, concurrency=CORES)
    built = builder.aggregate(BATCH, drop_last=True).pipe(torch.stack).add_sink(3).build(num_threads=CORES)
    with built.auto_stop():
        yield from built


def threads(shards: list[str]) -> Iterator[Any]:
    """The same in a plain pool of threads."""
    import torch

    samples, decode = _in_threads(shards)
    with ThreadPoolExecutor(CORES) as pool:
        ahead = deque(pool.submit(decode, sample) for sample in islice(samples, _AHEAD * BATCH))
        while True:
            images = []
            for sample in islice(samples, BATCH):
                images.append(ahead.popleft().result())
                ahead.append(pool.submit(decode, sample))
            yield torch.stack(images)


def _in_threads(shards: list[str]) -> tuple[Iterator[tuple[bytes, bytes]], Callable[[tuple[bytes, bytes]], Any]]:
    """Samples without an end, and what a thread makes of one: an image."""
    import torch
    import webdataset
    from torchvision.io import decode_jpeg
    from torchvision.transforms import v2

    torch.set_num_threads(1)  # of each thread that decodes
    augment = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])
    samples = webdataset.DataPipeline(
        webdataset.ResampledShards(shards),
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(100),
        webdataset.to_tuple("jpg", "cls"),
    )
    return iter(samples), lambda sample: augment(decode_jpeg(torch.frombuffer(bytearray(sample[0]), dtype=torch.uint8)))


def dali(shards: list[str]) -> Iterator[Any]:
    """DALI's own fused decoding and cropping, on the CPU."""
    import torch

    library: Any = importlib.import_module("nvidia.dali")
    fn: Any = importlib.import_module("nvidia.dali.fn")
    indices = [f"{shard}.dali" for shard in shards]
    for shard, index in zip(shards, indices, strict=True):
        subprocess.run([Path(sys.executable).parent / "wds2idx", shard, index], check=True, capture_output=True)

    @library.pipeline_def(batch_size=BATCH, num_threads=CORES, device_id=None, prefetch_queue_depth=3)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        jpeg, _ = fn.readers.webdataset(
            paths=shards, index_paths=indices, ext=["jpg", "cls"], random_shuffle=True, initial_fill=100
        )
        images = fn.decoders.image_random_crop(
            jpeg, output_type=library.types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(images, resize_x=SIDE, resize_y=SIDE, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip())

    built = pipeline()
    built.build()
    while True:
        (images,) = built.run()
        yield torch.from_numpy(images.as_array())


def decode_and_crop(shards: list[str], seconds: float) -> dict[str, float]:
    """Images per second of the bare work in one thread per process, a process per core."""
    import torchvision.transforms.v2.functional  # noqa: F401  # before the fork, as nothing may be computed before it

    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        every = pool.starmap(_bare, [(shards, seconds)] * CORES)
    return {"images_per_s": sum(one[0] for one in every), "images_per_cpu_s": statistics.mean(one[1] for one in every)}


def _bare(shards: list[str], seconds: float) -> tuple[float, float]:
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms import RandomResizedCrop
    from torchvision.transforms.v2.functional import resized_crop
    from trainer.datasets.shards import open_shards

    torch.set_num_threads(1)
    found = open_shards(shards[0])
    blobs = [torch.frombuffer(found.read(number)[0], dtype=torch.uint8) for number in range(len(found))]
    done, begin_s = 0, 0.0
    while begin_s == 0.0 or time.perf_counter() - begin_s < seconds:
        image = decode_jpeg(blobs[done % len(blobs)])
        box = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        resized_crop(image, *box, [SIDE, SIDE], antialias=True)
        done += 1
        if begin_s == 0.0 and done == 20:
            done, begin_s, begin_cpu_s = 0, time.perf_counter(), time.process_time()
    return done / (time.perf_counter() - begin_s), done / (time.process_time() - begin_cpu_s)
