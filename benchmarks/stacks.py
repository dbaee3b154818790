"""How long `distlaunch stacks` takes until it prints, for many ranks on simulated nodes of this machine.

Beside it, in turn: `distlaunch status`, which asks no agent.

    python benchmarks/stacks.py --nodes 64 --ranks 8

All agents and ranks share this machine's CPUs, so the time is an upper limit: on a cluster, each node has its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ratios, verdict

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 600
SCRIPT = """
import os, threading, time

def loads(path):
    return open(path).read()

def train():
    os.write(1, b"ready\\n")
    if os.environ["RANK"] == os.environ["ODD"]:
        reader, writer = os.pipe()
        loads(reader)
    threading.Event().wait(3600)

train()
"""


def distlaunch(env: dict[str, str], *words: str) -> str:
    """Run a command; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def timed(env: dict[str, str], *words: str) -> tuple[float, str]:
    """The seconds that a command takes, and its output."""
    began = time.perf_counter()
    said = distlaunch(env, *words)
    return time.perf_counter() - began, said


def wait_for(runs: Path, run: str, ranks: int) -> None:
    """Wait until all ranks are in their places."""
    limit = time.monotonic() + LIMIT_S
    while sum(path.read_bytes().count(b"ready\n") for path in runs.glob(f"{run}/nodes/*/stream")) < ranks:
        if time.monotonic() > limit:
            raise SystemExit(f"the ranks have not started in {LIMIT_S} s")
        time.sleep(0.5)


def check(found: dict[str, Any], ranks: int) -> None:
    """Whether the odd rank, and all others, were found."""
    sizes = [len(group["ranks"]) for group in found["groups"]]
    if sizes != [ranks - 1, 1] or found["silent"]:
        raise SystemExit(f"not what the ranks do: groups of {sizes}, silent nodes {found['silent']}")


def main() -> None:
    """Print the median, and the slowest, of some rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8, help="per node")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ranks = args.nodes * args.ranks
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "train.py")
        script.write_text(SCRIPT)
        runs = Path(directory, "runs")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "DISTLAUNCH_RUNS_DIR": str(runs), "ODD": str(ranks // 2)}
        shape = ("--nodes", str(args.nodes), "--nproc-per-node", str(args.ranks))
        run = distlaunch(env, "local", "--detach", *shape, str(script)).strip()
        try:
            wait_for(runs, run, ranks)
            times, beside = [], []
            for _ in range(args.rounds):
                took, said = timed(env, "stacks", run, "--output", "json")
                times.append(took)
                check(json.loads(said)["result"], ranks)
                beside.append(timed(env, "status", run)[0])
        finally:
            distlaunch(env, "cancel", "--force", run)
    print(f"stacks of {ranks} ranks on {args.nodes} nodes, {args.rounds} rounds")
    print(f"  median {statistics.median(times):.2f} s, slowest {max(times):.2f} s (to reach: 3 s)")
    print(f"  ratio to distlaunch status: {verdict(ratios(times, beside))}")


if __name__ == "__main__":
    main()
