"""`distlaunch doctor` against a plain run, on hosts of a real Slurm that it brings up itself.

    python benchmarks/doctor.py [--hosts 32] [--rounds 3]    as root: it makes network namespaces, see docs/testbed.md

Both are timed from the command to its exit, in turns: doctor without its arithmetic (`--seconds 0`), and
train/reduce.py on the same hosts. The difference is what doctor checks: ports, packet sizes, clocks, and each pair of
hosts. Every node must have reported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import environment, verdict
from testbed import SlurmOptions, Testbed

TARGET = 2.0
"""Highest ratio of its time to a plain run's."""


def timed(argv: list[str], env: dict[str, str], directory: str) -> tuple[float, str]:
    """A command's seconds and output; an exit code other than 0 and 1, which stands for findings, is an error."""
    began = time.monotonic()
    done = subprocess.run(argv, env=env, cwd=directory, capture_output=True, text=True, timeout=900, check=False)
    taken = time.monotonic() - began
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv[2:])} ended with {done.returncode}: {done.stderr}")
    return taken, done.stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    nodes = ("--nodes", str(options.hosts), "--nproc-per-node", "1", "--no-snapshot")
    launch = [sys.executable, "-m", "launcher"]
    doctor = [*launch, "doctor", "slurm", *nodes, "--seconds", "0", "--output", "json"]
    plain = [*launch, "slurm", *nodes, "--log-ranks", "all", "reduce.py"]
    with tempfile.TemporaryDirectory() as directory, Testbed().up(options.hosts, slurm=SlurmOptions()) as testbed:
        env = {**os.environ, **testbed.slurm.env(), **environment(directory)}
        ratios = []
        for number in range(options.rounds):
            plain_s, said = timed(plain, env, directory)
            if said.count(": before") != options.hosts:
                raise SystemExit(f"not all of {options.hosts} ranks have printed:\n{said}")
            doctor_s, said = timed(doctor, env, directory)
            told = json.loads(said)["result"]
            if sum(node["reported"] for node in told["nodes"]) != options.hosts or told["links"] is None:
                raise SystemExit(f"not all of {options.hosts} nodes have reported:\n{said}")
            ratios.append(doctor_s / plain_s)
            print(
                f"round {number + 1}: plain {plain_s:.1f} s, doctor {doctor_s:.1f} s, ratio {ratios[-1]:.2f}",
                flush=True,
            )
        print(f"{options.hosts} hosts, doctor / plain run, wall ratio: {verdict(ratios, at_most=TARGET)}")


if __name__ == "__main__":
    main()
