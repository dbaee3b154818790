"""Time per step of every synchronisation method in train/, next to DDP's, in turns.

    python benchmarks/sync.py [--rounds 3] [--steps 12] [--batch-size 16] [--side 64] [--model resnet18]
                              [--ways ddp,fsdp]

Two ranks with gloo under distlaunch on this machine, synthetic images, the same number of samples in every step;
`data-parallel` is one process with two shares. A step's time is from the median throughput that the trainer logs,
without the first row. The losses must be those of a training.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory
from benchmarks._measure import ROOT, Contender, environment, launched, measure, ratios, verdict

RANKS, CLASSES = 2, 10
WAYS = (
    "ddp",
    "fsdp",
    "average-gradients",
    "reduce-broadcast",
    "parameter-server",
    "async-parameter-server",
    "data-parallel",
)


def command(way: str, options: argparse.Namespace, directory: Path) -> list[str]:
    """The command for the same steps by one method."""
    ranks = 1 if way == "data-parallel" else RANKS
    samples = options.batch_size * RANKS * options.steps
    flags = [
        "--data",
        "synthetic",
        "--samples",
        str(samples),
        "--model",
        options.model,
        "--sync",
        way,
        "--precision",
        "fp32",
    ]
    flags += [
        "--batch-size",
        str(options.batch_size * RANKS // ranks),
        "--image-shape",
        f"3x{options.side}x{options.side}",
    ]
    flags += ["--optimizer", "sgd", "--lr", "0.001", "--schedule", "constant", "--warmup", "0", "--workers", "1"]
    flags += [
        "--log-every",
        str(max(1, options.steps // 4)),
        "--out",
        str(directory),
        "--resume",
        "never",
        "--report",
        "none",
    ]
    return [*launched(ranks), str(ROOT / "train/train.py"), *flags]


def step_s(way: str, options: argparse.Namespace, scratch: Path) -> float:
    """Seconds per step of one run."""
    directory = scratch / "out"
    env = {**environment(scratch), "OMP_NUM_THREADS": "1"}
    sample = measure(Contender(way, command(way, options, directory), env, str(scratch), limit_s=300))
    if sample.exit_code:
        raise RuntimeError(f"{way}: exit code {sample.exit_code}\n{sample.output[-3000:]}")
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rows = [record for record in records if record["event"] == "train"]
    if not abs(rows[0]["loss"] - math.log(CLASSES)) < 1.5 or not rows[-1]["loss"] < rows[0]["loss"] + 1.0:
        raise RuntimeError(f"{way}: losses {[row['loss'] for row in rows]} are not those of a training that begins")
    return float(options.batch_size * RANKS / statistics.median(row["samples_per_s"] for row in rows[1:]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, with commas; ddp is always among them")
    options = parser.parse_args()
    chosen = ["ddp", *options.ways.split(",")]
    taken: dict[str, list[float]] = {way: [] for way in WAYS if way in chosen}
    with tempfile.TemporaryDirectory() as scratch:
        _free_memory.keep(options.rounds)
        for _ in range(options.rounds):
            for way, seconds in taken.items():
                seconds.append(step_s(way, options, Path(scratch)))
    images = f"{options.batch_size * RANKS} images a step"
    print(f"{options.model} at {options.side}, {RANKS} ranks, {images}, float32, {options.rounds} rounds")
    print("| `--sync` | ms per step | ratio to ddp |\n| --- | --- | --- |")
    for way, seconds in taken.items():
        print(f"| `{way}` | {statistics.median(seconds) * 1000:.0f} | {verdict(ratios(seconds, taken['ddp']))} |")


if __name__ == "__main__":
    main()
