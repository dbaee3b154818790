"""Training steps of ResNet-18 at 224 on two ranks: our trainer, torchvision's reference recipe, and a bare loop.

    python benchmarks/train_step.py [--rounds 3] [--steps 8] [--batch-size 16] [--side 224] [--model resnet18]
                                    [--precision auto]

All run under distlaunch with gloo. The recipe is that of torchvision's references/classification (float32, SGD with
momentum); the bare loop does the same steps as ours (channels_last, the same precision) on one batch in memory,
without reader, log and checkpoints. `auto` is bf16 if the CPU computes faster in it, else float32, where there is less
to gain. `ceiling` is what float32 could reach if all of a step's arithmetic ran as fast as a product of large matrices.
Images per second are from the median step. Before a ratio counts, every run's losses must be those of a training:
as by chance at first, and not diverging.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trainer.torch_private import has_fast_bfloat16

from benchmarks import _free_memory
from benchmarks._measure import ROOT, Contender, cpu_model, environment, launched, measure, ratios, verdict

RANKS, CLASSES = 2, 10
FLOORS = {"recipe": 2.0, "bare": 1.0}


def commands(options: argparse.Namespace, directory: Path) -> dict[str, list[str]]:
    """The command of each contender, for the same steps."""
    size = [str(options.batch_size), str(options.side), str(options.steps)]
    samples = options.batch_size * RANKS * options.steps
    flags = ["--data", "synthetic", "--samples", str(samples), "--model", options.model, "--batch-size", size[0]]
    flags += ["--image-shape", f"3x{size[1]}x{size[1]}", "--optimizer", "sgd", "--lr", "0.01", "--schedule", "constant"]
    flags += ["--warmup", "0", "--log-every", str(max(1, options.steps // 2)), "--precision", options.precision]
    flags += ["--out", str(directory / "out"), "--resume", "never"]
    step = str(ROOT / "benchmarks/_workers/step.py")
    return {
        "ours": [*launched(RANKS), str(ROOT / "train/train.py"), *flags, "--report", "none"],
        **{
            kind: [*launched(RANKS), step, kind, options.model, options.precision, *size]
            for kind in (*FLOORS, "ceiling")
        },
    }


def speed(name: str, output: str, directory: Path) -> float:
    """Images per second; raises `RuntimeError` if the losses are not those of a training."""
    if name == "ours":
        records = [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]
        rows = [record for record in records if record["event"] == "train"]
        losses, found = (
            [row["loss"] for row in rows],
            float(statistics.median(row["samples_per_s"] for row in rows[1:])),
        )
    else:
        match = re.search(r"images/s (\S+)(?: loss (\S+) (\S+))?", output)
        if match is None:
            raise RuntimeError(f"{name} printed no speed:\n{output[-2000:]}")
        if name == "ceiling":
            return float(match[1])
        found, losses = float(match[1]), [float(match[2]), float(match[3])]
    if not abs(losses[0] - math.log(CLASSES)) < 1.0 or not losses[-1] < losses[0] + 1.0:
        raise RuntimeError(f"{name}: losses {losses} are not those of a training that begins")
    return float(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto")
    options = parser.parse_args()
    if options.precision == "auto":
        options.precision = "bf16" if has_fast_bfloat16() else "fp32"
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory, env = Path(scratch), {**environment(scratch), "OMP_NUM_THREADS": "1"}
        _free_memory.keep(options.rounds)
        for _ in range(options.rounds):
            for name, argv in commands(options, directory).items():
                sample = measure(Contender(name, argv, env, scratch, limit_s=300))
                if sample.exit_code:
                    raise RuntimeError(f"{name}: exit code {sample.exit_code}\n{sample.output[-3000:]}")
                taken.setdefault(name, []).append(speed(name, sample.output, directory))
    size = f"{options.batch_size} images per rank and step"
    print(
        f"{options.model} at {options.side}, {RANKS} ranks, {size}, "
        f"ours in {options.precision}, {options.rounds} rounds; {cpu_model()}"
    )
    for name, speeds in taken.items():
        print(f"  {name:<8}  {statistics.median(speeds):8.1f} images/s")
    for name, floor in FLOORS.items():
        print(f"  ours / {name}, median ratio: {verdict(ratios(taken['ours'], taken[name]), at_least=floor)}")
    bound = statistics.median(ratios(taken["ceiling"], taken["recipe"]))
    print(f"  the most that float32 could reach here, by this CPU's matrix products: {bound:.2f} times the recipe")


if __name__ == "__main__":
    main()
