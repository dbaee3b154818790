"""From the command to a finished all_reduce: distlaunch, torchrun and torchx on this machine.

    python benchmarks/start.py [--rounds 5] [--workers 1,2,8] [--only distlaunch,torchrun] [--no-memory]

All run train/reduce.py over gloo, and the output of every rank is checked. Measured are wall time, the CPU time of all
that was started, and memory per rank while all ranks wait at a barrier. Beside them stands the import of torch alone,
and a start from what an earlier run has left standing (`--warm`).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, Contender, Sample, environment, median, paired_ratios, side_by_side, verdict
from benchmarks._memory import memory_of
from benchmarks._phases import phases
from benchmarks._warm import show_warm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TARGETS = {
    "torchrun": {1: {"wall_s": 0.5}, 8: {"wall_s": 0.22, "cpu_s": 0.14}},
    "import torch": {8: {"wall_s": 1.25, "cpu_s": 1.5}},
}
"""Highest ratios of distlaunch's time to another's, by the number of workers."""

OURS = ("distlaunch", "as torchrun")
"""The second is `distlaunch torchrun`."""


def commands(workers: int, script: Path) -> dict[str, list[str]]:
    """The same job by each launcher that is installed."""
    count, python = str(workers), sys.executable
    found = {
        "distlaunch": [python, "-m", "launcher", "local", "--nproc-per-node", count, "--log-ranks", "all", str(script)],
        "as torchrun": [python, "-m", "launcher", "torchrun", "--standalone", "--nproc-per-node", count, str(script)],
        "torchrun": [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, str(script)],
        "import torch": [python, "-c", "import torch"],
    }
    torchx = shutil.which("torchx", path=str(Path(python).parent)) or shutil.which("torchx")
    if torchx:
        found["torchx"] = [torchx, "run", "-s", "local_cwd", "dist.ddp", "-j", f"1x{count}", "--script", str(script)]
    return found


def problem(workers: int, output: str) -> str | None:
    """What is wrong with the output of train/reduce.py's ranks; None if nothing is."""
    total = workers * (workers + 1) // 2
    for rank in range(workers):
        head, tail = f"rank {rank}/{workers} on ", f": before {rank + 1}, after {total}"
        if sum(head in line and line.rstrip().endswith(tail) for line in output.splitlines()) != 1:
            return f"rank {rank} of {workers} did not print {tail[2:]!r} once"
    return None


def show(workers: int, samples: Mapping[str, Sequence[Sample]]) -> str:
    """Medians, and the ratios of distlaunch's time to the others'."""
    lines = [f"{workers} worker{'s' * (workers > 1)}, {len(samples['distlaunch'])} rounds"]
    for name, taken in samples.items():
        lines.append(f"  {name:<11}  wall {median(taken, 'wall_s'):6.2f} s   cpu {median(taken, 'cpu_s'):6.2f} s")
    for ours, peer in ((ours, peer) for ours in OURS for peer in samples if ours in samples and peer not in OURS):
        for what in ("wall_s", "cpu_s"):
            target = TARGETS.get(peer, {}).get(workers, {}).get(what) if ours == "distlaunch" else None
            found = verdict(paired_ratios(samples[ours], samples[peer], what), at_most=target)
            lines.append(f"  {ours} / {peer}, {what[:-2]} ratio: {found}")
    return "\n".join(lines)


def show_memory(workers: int, scratch: Path, rounds: int, only: Sequence[str]) -> str:
    """Memory per rank, each launcher's median."""
    lines = [
        f"memory per rank, {workers} worker{'s' * (workers > 1)}, MB (whole: everything started, divided by the ranks)"
    ]
    first: float | None = None
    for name, argv in commands(workers, ROOT / "benchmarks/_workers/memory.py").items():
        if name not in only or name == "import torch":
            continue
        contender = Contender(name, argv, environment(scratch), str(scratch), limit_s=120)
        seen = [memory_of(contender, workers, scratch) for _ in range(rounds)]
        pss, private, whole = (
            statistics.median(getattr(memory, field) for memory in seen) / 1e6 for field in seen[0].FIELDS
        )
        first = first or pss
        lines.append(
            f"  {name:<11}  pss {pss:6.1f}   private {private:6.1f}   whole {whole:6.1f}   pss ratio {first / pss:.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="1,2,8", help="numbers of workers, with commas")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-warm-up", action="store_true", help="count the first round, too")
    parser.add_argument(
        "--only",
        default="distlaunch,as torchrun,torchrun,torchx,import torch,warm",
        help="which, with commas; distlaunch must be among them",
    )
    options = parser.parse_args()
    only = options.only.split(",")
    if "torchx" in only and "torchx" not in commands(1, ROOT):
        print("torchx is not here to compare with; uv pip install --python .venv torchx", file=sys.stderr)
    for workers in map(int, options.workers.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            contenders = [
                Contender(
                    name,
                    argv,
                    environment(directory),
                    directory,
                    check=None if name == "import torch" else partial(problem, workers),
                )
                for name, argv in commands(workers, ROOT / "train/reduce.py").items()
                if name in only
            ]
            samples = side_by_side(contenders, rounds=options.rounds, warm=not options.no_warm_up)
            print(show(workers, samples), flush=True)
            print(phases(Path(directory, "runs"), last=options.rounds), flush=True)
            if not options.no_memory:
                print(show_memory(workers, Path(directory), min(3, options.rounds), only), flush=True)
            if "warm" in only:
                print(show_warm(workers, Path(directory), options.rounds, partial(problem, workers)), flush=True)


if __name__ == "__main__":
    main()
