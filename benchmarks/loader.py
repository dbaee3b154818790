"""Images per second of our reader and its peers: the same tars, decoded, cropped at random to 224, mirrored, batched.

    python benchmarks/loader.py [--rounds 5] [--seconds 6] [--images 1500] [--only ours,webdataset-pil,...]
                                [--free-threaded PYTHON]

Every contender uses all cores that this process may use. Before a ratio counts, each contender's batches must have the
same mean and deviation of pixels as ours. On a shared host, the ratio per CPU second is steadier. Peers: WebDataset
with PIL and floats (its documentation's example), WebDataset with torchvision's decoder and uint8, SPDL's pipeline of
threads with the same decoder (its own needs FFmpeg's libraries), NVIDIA DALI's CPU pipeline, and decoding and cropping
alone, from memory, in a process per core. With `--free-threaded`, a build of Python without a GIL that has torch,
torchvision, webdataset and spdl-core, also SPDL's pipeline and a plain pool of threads there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory
from benchmarks._measure import ROOT, cpu_model, descendants, environment, ratios, verdict
from benchmarks._readers import BATCH, CORES, SIDE, dali, decode_and_crop, spdl, threads, webdataset_peer

if TYPE_CHECKING:
    from collections.abc import Iterator

STATISTICS = 512
"""Images of which the pixels' mean and deviation are compared."""

FREE_THREADED = ("spdl-free-threaded", "threads-free-threaded")
"""Contenders under a Python without a GIL."""

FLOORS = {"webdataset-pil": 1.9, "webdataset-uint8": 1.12, "spdl": 1.0, "dali-cpu": 1.2, "decode-and-crop": 0.95}
FLOORS.update(dict.fromkeys(FREE_THREADED, 1.0))
"""Lowest ratio of our speed to the peer's."""

PEERS = {"spdl": ("spdl.pipeline", "spdl-core"), "dali-cpu": ("nvidia.dali", "nvidia-dali-cuda130")}
"""Contenders that this project does not install: their modules and packages."""

LOOK_S = 0.5
"""How often memory is looked at."""

MEMORY_MB = 300.0
"""Highest memory of our reader beyond the imported libraries, for any size of the data set."""


def ours(shards: list[str]) -> Iterator[Any]:
    """The trainer's reader."""
    import torch
    from trainer.datasets import load_data
    from trainer.flags import parse
    from trainer.loader import Batches
    from trainer.world import World

    flags = [
        "--data",
        "::".join(shards),
        "--model",
        "resnet18",
        "--image-shape",
        f"3x{SIDE}x{SIDE}",
        "--workers",
        str(CORES),
    ]
    config = parse([*flags, "--batch-size", str(BATCH)], 1)
    batches = Batches(load_data(config, 1), config, World(0, 0, 1, torch.device("cpu")))
    for epoch in range(1000):
        for batch in batches.train(epoch):
            yield batch.images


MAKERS = {
    "ours": ours, "spdl": spdl, "dali-cpu": dali, "spdl-free-threaded": spdl, "threads-free-threaded": threads,
}  # fmt: skip


def measure(name: str, shards: list[str], seconds: float) -> dict[str, float]:
    """One contender in this process: images per second, and the pixels' mean and deviation."""
    if name == "decode-and-crop":
        return decode_and_crop(shards, seconds)
    import torchvision.io  # noqa: F401  # common to all contenders
    import trainer.datasets
    import trainer.loader  # noqa: F401

    if name in FREE_THREADED and getattr(sys, "_is_gil_enabled", lambda: True)():
        raise RuntimeError(f"{sys.executable} has a GIL")
    before_mb = _own_mb()
    batches = (
        webdataset_peer(shards, uint8=name == "webdataset-uint8") if name.startswith("web") else MAKERS[name](shards)
    )
    first = [next(batches) for _ in range(STATISTICS // BATCH)]
    means = [float(batch.float().mean()) for batch in first]
    deviations = [float(batch.float().std()) for batch in first]
    images, held_mb, begin_s, begin_cpu_s = 0, 0.0, time.perf_counter(), _cpu_s()
    look_s = begin_s
    while time.perf_counter() - begin_s < seconds:
        images += len(next(batches))
        if time.perf_counter() > look_s:  # not for each batch: looking takes milliseconds of a core
            held_mb, look_s = max(held_mb, _own_mb() - before_mb), time.perf_counter() + LOOK_S
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    speed, per_cpu_s = images / (time.perf_counter() - begin_s), images / max(tick_s, _cpu_s() - begin_cpu_s)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    speeds = {"images_per_s": speed, "images_per_cpu_s": per_cpu_s}
    pixels = {"mean": statistics.mean(means), "std": statistics.mean(deviations)}
    return {**speeds, **pixels, "rss_mb": memory, "held_mb": held_mb}


def _own_mb() -> float:
    """Memory of this process and its descendants that is not file-backed: arrays, buffers, heaps."""
    total = 0
    for pid in [os.getpid(), *descendants()]:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has exited
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))
    return total / 1024


def _cpu_s() -> float:
    """CPU time of this process and its descendants so far."""
    ticks = 0
    for pid in [os.getpid(), *descendants()]:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def contenders() -> list[str]:
    """The installed contenders."""
    names = ["ours", "webdataset-pil", "webdataset-uint8", "decode-and-crop"]
    return names + [name for name, (module, _) in PEERS.items() if _is_here(module)]


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of measuring, per contender and round")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--only", default="", help="which, with commas; ours must be among them")
    parser.add_argument("--free-threaded", metavar="PYTHON", help="an interpreter without a GIL, with what peers need")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, directory = options.worker
        print(json.dumps(measure(name, sorted(map(str, Path(directory).glob("*.tar"))), options.seconds)))
        sys.stdout.flush()
        os._exit(0)  # endless pipelines do not exit by themselves
    names = options.only.split(",") if options.only else contenders()
    if options.free_threaded:
        names += [name for name in FREE_THREADED if name not in names]
    for name, (_, package) in PEERS.items():
        if name not in names and not options.only:
            print(f"{name} is not here to compare with: uv pip install --python .venv {package}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as directory:
        make = [
            sys.executable,
            str(ROOT / "train/make_shards.py"),
            "synthetic",
            f"{directory}/shards",
            "--samples",
            str(options.images),
        ]
        subprocess.run(
            [*make, "--samples-per-shard", str(max(1, options.images // 6))], check=True, env=environment(directory)
        )
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        _free_memory.keep(options.rounds)
        for _ in range(options.rounds):
            for name in names:
                argv = [
                    options.free_threaded if name in FREE_THREADED else sys.executable,
                    __file__,
                    "--seconds",
                    str(options.seconds),
                    "--worker",
                    name,
                    f"{directory}/shards",
                ]
                free = {"PYTHON_GIL": "0"} if name in FREE_THREADED else {}  # also if a module says that it needs one
                run = subprocess.run(
                    argv, env=environment(directory) | free, capture_output=True, text=True, timeout=300, check=False
                )
                if run.returncode:
                    raise RuntimeError(f"{name}: exit code {run.returncode}\n{run.stderr[-3000:]}")
                taken[name].append(json.loads(run.stdout.splitlines()[-1]))
    show(taken)


def show(taken: dict[str, list[dict[str, float]]]) -> None:
    """Print medians and ratios, and check that all contenders do the same work."""
    print(f"{CORES} cores, batches of {BATCH} at {SIDE}x{SIDE}, {len(taken['ours'])} rounds; {cpu_model()}")
    for name, runs in taken.items():
        speed = statistics.median(run["images_per_s"] for run in runs)
        pixels = "".join(
            f"  {what} {statistics.median(run[what] for run in runs):.1f}"
            for what in ("images_per_cpu_s", "mean", "std", "rss_mb", "held_mb")
            if what in runs[0]
        )
        print(f"  {name:<22}  {speed:7.0f} images/s{pixels}")
        far = [what for what in ("mean", "std") if what in runs[0] and abs(runs[0][what] - taken["ours"][0][what]) > 4]
        if far:
            raise RuntimeError(f"{name} does not do the same work: {far} of its pixels differ from ours by more than 4")
    held = [run["held_mb"] for run in taken["ours"]]
    of_limit = verdict([held_mb / MEMORY_MB for held_mb in held], at_most=1.0)
    print(
        f"  ours holds {statistics.median(held):.0f} MB beyond the libraries; ratio to {MEMORY_MB:.0f} MB: {of_limit}"
    )
    for name in list(taken)[1:]:
        ways = ("images_per_s", "images_per_cpu_s")
        pairs, cpu = (ratios([run[way] for run in taken["ours"]], [run[way] for run in taken[name]]) for way in ways)
        print(f"  ours / {name}, median ratio: {verdict(pairs, at_least=FLOORS[name])}; per CPU second: {verdict(cpu)}")


if __name__ == "__main__":
    main()
