"""How often all workers restart after one is killed, and how long that takes, against torchrun.

    python benchmarks/restart.py [--runs 50] [--torchrun-runs 10] [--limit 60]

Two ranks over gloo, --max-restarts 1; the last rank kills itself after its first all_reduce. A run succeeds if its exit
code is 0 and every rank has done another all_reduce after the restart; the time is from the kill to the last rank's
first sum.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory
from benchmarks._measure import ROOT, TIMED_OUT, Contender, environment, measure, verdict

WORKERS = 2


def commands() -> dict[str, list[str]]:
    """The same job by both launchers."""
    options, script = (
        ["--nproc-per-node", str(WORKERS), "--max-restarts", "1"],
        str(ROOT / "benchmarks/_workers/crash.py"),
    )
    return {
        "distlaunch": [sys.executable, "-m", "launcher", "local", *options, script],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, script],
    }


def recovery_s(name: str, argv: list[str], limit_s: float) -> float | None:
    """Seconds from the crash until all ranks of one run train again; None, with a message, if it did not succeed."""
    with tempfile.TemporaryDirectory() as directory:
        env = {**environment(directory), "BENCH_DIRECTORY": directory}
        sample = measure(Contender(name, argv, env, directory, limit_s=limit_s))
        stamps = sorted(Path(directory).glob("again-*"))
        if sample.exit_code == 0 and len(stamps) == WORKERS:
            return max(float(path.read_text()) for path in stamps) - float(Path(directory, "crash").read_text())
    how = f"not ended after {limit_s:.0f} s" if sample.exit_code == TIMED_OUT else f"exit code {sample.exit_code}"
    errors = [line for line in sample.output.splitlines() if re.search(r"Error: \S", line)]
    print(f"{name}: {how}, {len(stamps)} of {WORKERS} ranks trained again; last error: {errors[-1:]}", file=sys.stderr)
    return None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--torchrun-runs", type=int, default=10)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a run may take")
    options = parser.parse_args()
    wanted = {"distlaunch": options.runs, "torchrun": options.torchrun_runs}
    tried: dict[str, list[float | None]] = {name: [] for name in wanted}
    _free_memory.keep(max(wanted.values()))
    for number in range(max(wanted.values())):
        for name, argv in commands().items():  # side by side while both have runs left
            if number < wanted[name]:
                tried[name].append(recovery_s(name, argv, options.limit))
    for name, times in tried.items():
        good = [time for time in times if time is not None]
        spread = f"median {statistics.median(good):.3f} s, {min(good):.3f} to {max(good):.3f}" if good else "-"
        print(f"{name:<10}  {len(good)} of {len(times)} runs trained again; from crash to the first sum: {spread}")
    pairs = [a / b for a, b in zip(*tried.values(), strict=False) if a is not None and b is not None]
    ratio = verdict(pairs) if pairs else "none: no pair of successful runs"
    print(f"distlaunch / torchrun, median ratio over {len(pairs)} pairs: {ratio}")


if __name__ == "__main__":
    main()
